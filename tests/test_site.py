"""The site without building it: every page is listed, all are short enough, and a newcomer reads few of them."""

import importlib.util
import json
import operator
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import ehrsequencing
from ehrsequencing.simulate import SimulationConfig

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
OFF_SITE = {"decisions.md", "written-by-hand.md"}
NEWCOMER = ["index.md", "start.md", "install.md", "data-csv.md"]  # from the first page to a report


def words(text: str) -> int:
    """Words, those of commands and tables included; a number or a rule of a table is none."""
    return sum(bool(re.search("[A-Za-z]{2}", word)) for word in text.split())


def pages() -> dict[str, str]:
    found = {path.name: path.read_text(encoding="utf-8") for path in DOCS.glob("*.md")}
    return {name: text for name, text in found.items() if name not in OFF_SITE}


def test_a_newcomer_reads_900_words_and_types_8_commands() -> None:
    text = "\n".join(pages()[name] for name in NEWCOMER)
    assert words(text) <= 900
    commands = re.findall(r"(?m)^    (?:ehrseq|make) .*$", text)
    assert [command.split()[1] for command in commands[1:]][-2:] == ["evaluate", "audit"]
    assert len(commands) <= 8


BUILT = ROOT / "site" / "html" / "_generated" / "gallery"


@pytest.mark.skipif(not BUILT.is_dir(), reason="make site builds the pages")
@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_built_notebook_shows_its_outputs_and_says_where_it_is_no_result(path: Path) -> None:
    """Every output that the build made is on the page; a notebook on few patients says so, and no other does."""
    book = json.loads((DOCS / "_generated" / "gallery" / path.name).read_text(encoding="utf-8"))
    html = (BUILT / f"{path.stem}.html").read_text(encoding="utf-8")
    shown = [cell for cell in book["cells"] if cell["cell_type"] == "code" and cell["outputs"]]
    assert len(shown) > 3
    assert html.count("cell_output") == len(shown)
    pictures = [output for cell in shown for output in cell["outputs"] if "image/png" in output.get("data", {})]
    assert html.count('src="../../_images/') >= len(pictures) > 0
    is_short = any("not a result" in "".join(cell["source"]) for cell in book["cells"])
    assert ("not a result" in html) == is_short


def test_at_most_30_000_words() -> None:
    assert sum(words(text) for text in pages().values()) <= 30_000


def test_every_page_is_in_a_table_of_contents() -> None:
    listed = set()
    for text in pages().values():
        for block in re.findall(r"```\{toctree\}\n(.*?)```", text, re.DOTALL):
            listed |= {re.sub(r".*<(.*)>", r"\1", line) for line in block.split("\n") if line and line[0] != ":"}
    assert {name.removesuffix(".md") for name in pages()} - listed == {"index"}


def test_every_link_of_every_page_resolves() -> None:
    """As GitHub shows them; the site's build checks its own."""
    broken = []
    for path in (*ROOT.glob("*.md"), *DOCS.rglob("*.md")):
        if "_generated" in path.parts:
            continue
        text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            file, _, anchor = link.partition("#")
            target = path.parent / file if file else path
            if link.startswith("http"):
                continue
            if not target.exists() or (anchor and anchor not in anchors(target)):
                broken.append(f"{path.name}: {link}")
    assert broken == []


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"(?m)^#+ (.*)$", page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def test_old_addresses_lead_to_pages() -> None:
    block = (DOCS / "conf.py").read_text(encoding="utf-8").partition("MOVED = {")[2].partition("}")[0]
    moved = dict(re.findall(r'"([\w-]+)": "([\w-]+)"', block))
    assert moved["guide"] == "tasks"
    names = {name.removesuffix(".md") for name in pages()}
    assert not moved.keys() & names
    assert set(moved.values()) <= names


def test_the_source_names_pages_and_sections_that_exist() -> None:
    """In errors, comments and docstrings, which nobody follows while they are written."""
    lost = []
    for path in (ROOT / "src").rglob("*"):
        if path.suffix not in {".py", ".toml", ".jinja"}:
            continue
        for page, anchor in re.findall(r"docs/([\w-]+\.md)(?:#([\w-]+))?", path.read_text(encoding="utf-8")):
            if not (DOCS / page).is_file() or (anchor and anchor not in anchors(DOCS / page)):
                lost.append(f"{path.name}: {page}#{anchor}")
    assert lost == []


def test_one_version_everywhere() -> None:
    version = ehrsequencing.__version__
    for file, line in {
        "CITATION.cff": f"version: {version}\n",
        "packaging/conda/recipe.yaml": f'version: "{version}"\n',
        "CHANGELOG.md": f"## {version}\n",
    }.items():
        assert line in (ROOT / file).read_text(encoding="utf-8"), file


def test_nothing_says_to_install_the_name_from_an_index() -> None:
    """The package is on none, so anybody could take its name there. `packaging/RELEASING.md` says when that changes."""
    named = re.compile(r"pip3? install(?:[^`\n]|\\\n)*?(?<![\w/.-])ehrsequencing\b")
    assert named.search((ROOT / "packaging" / "RELEASING.md").read_text(encoding="utf-8"))
    folders = ("docs", "examples", "src")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if "_generated" not in path.parts]
    texts = [path for path in files if path.suffix in {".md", ".py", ".ipynb", ".sh", ".html", ".yaml"}]
    for path in (*ROOT.glob("*.md"), ROOT / "Makefile", ROOT / "Dockerfile", *texts):
        assert not named.search(path.read_text(encoding="utf-8")), path


def test_settings_are_found_with_their_meaning() -> None:
    page = _generator().settings_page()
    assert "| `window` | duration | `1h` |" in page
    assert "| `size` | `small` / `medium` / `large` or null | `null` | " in page
    assert [row for row in page.split("\n") if row.startswith("| `") and row.endswith("|  |")] == []


def test_every_knob_of_the_simulator_is_listed_with_its_default_and_range() -> None:
    page = _generator().settings_page().partition("## simulate")[2]
    rows = re.findall(r"(?m)^\| `(\w+)` \| [a-z ]+, (\S+) to (\S+) \| `(.+)` \| .+ \|$", page)
    listed = {name: bounds for name, *bounds in rows}
    for knob, field in SimulationConfig.model_fields.items():
        if field.annotation in (int, float):
            low, high = (next(getattr(at, end) for at in field.metadata if hasattr(at, end)) for end in ("ge", "le"))
            assert listed[knob] == [str(low), str(high), json.dumps(field.default)]
    assert len(listed) > 35


def test_every_name_on_the_page_for_users_of_other_libraries_has_its_answer() -> None:
    rows = re.findall(r"(?m)^\| `(\S+?)=?` \| (.*) \|$", _generator().coming_from_page())
    assert len(rows) > 50
    assert [name for name, here in rows if not here.removeprefix("in `eh.metrics`: ")] == []
    for name, here in rows:
        if name in {"CoxPHFitter", "cross_val_score", "runPlp"}:
            with pytest.raises(AttributeError, match=re.escape(here)):
                getattr(ehrsequencing, name)


def test_each_public_name_is_on_the_page_of_its_module_and_on_no_other() -> None:
    pages = _generator().api_pages()
    at: dict[str, list[str]] = {}
    for page, text in pages.items():
        for name in re.findall(r"\.\. auto\w+:: (\S+)", text):
            at.setdefault(name, []).append(page)
    packages = {"metrics": ehrsequencing.metrics.__all__, "nn": ehrsequencing.nn.__all__}
    public = {f"ehrsequencing.{name}" for name in {*ehrsequencing.__all__} - {"__version__", *packages}}
    public |= {f"ehrsequencing.{package}.{name}" for package, names in packages.items() for name in names}
    assert public <= at.keys()
    assert {len(found) for found in at.values()} == {1}
    assert at["ehrsequencing.fit"] == ["ehrsequencing.api.training.md"]
    assert at["ehrsequencing.metrics.auc"] == ["ehrsequencing.metrics.md"]
    for name in public - {"ehrsequencing.visit_encoder"}:  # which is no class and no function
        defined = operator.attrgetter(name.removeprefix("ehrsequencing."))(ehrsequencing).__module__
        assert f"{defined}.".startswith(at[name][0].removesuffix("md")), name
    for page in pages.keys() - {"api.md"}:
        assert f"]({page})" in pages["api.md"]
        assert f"\n{page.removesuffix('.md')}\n" in pages["api.md"]


def test_a_link_to_a_notebook_leads_to_the_gallery_and_others_out_of_docs_to_a_name() -> None:
    source = ["A [notebook](../examples/6-p12.ipynb), the [licence](../LICENSE) and a [note](lab-notes/trials.md#a)."]
    _generator().link_to_repository(None, "evidence", source)
    assert source == [
        "A {doc}`notebook </_generated/gallery/6-p12>`, the licence, `LICENSE` and a note, `docs/lab-notes/trials.md`."
    ]


def test_notebooks_run_again_for_other_sizes_or_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short run has a note with its numbers, a full one and one that keeps its outputs have none."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    ran = []
    monkeypatch.setattr(nbclient.NotebookClient, "execute", lambda client: ran.append(client))
    for name, metadata in {"run": {}, "kept": {"needs": "data"}}.items():
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# Title\n\nText.")], metadata=metadata)
        nbformat.write(book, tmp_path / f"{name}.ipynb")
    generator = _generator()

    def made(subjects: str | None, epochs: str | None) -> tuple[int, str, str]:
        """How many notebooks ran, and the texts of the two pages."""
        for key, value in {"SUBJECTS": subjects, "EPOCHS": epochs}.items():
            monkeypatch.delenv(key, raising=False)
            if value is not None:
                monkeypatch.setenv(key, value)
        ran.clear()
        titles = [title for _, title, _ in generator.executed(tmp_path, tmp_path / "out")]
        assert titles == ["Title", "Title"]
        books = [json.loads((tmp_path / "out" / f"{name}.ipynb").read_text()) for name in ("run", "kept")]
        run, kept = ("".join(book["cells"][0]["source"]) for book in books)
        return len(ran), run, kept

    plain = "# Title\n\nText."
    note = "# Title\n\n:::{warning}\nRun on %s to test the page: not a result.\n:::\n\n\nText."
    assert made("300", "2") == (1, note % "300 patients and 2 epochs", plain)
    assert made("300", "2")[0] == 0
    assert made(None, "2") == (1, note % "2,000 patients and 2 epochs", plain)
    assert made("300", None) == (1, note % "300 patients and 20 epochs", plain)
    assert made(None, None) == (1, plain, plain)
    assert made("2000", "20")[0] == 0
    assert made("3000", None) == (1, plain, plain)
    monkeypatch.setattr(ehrsequencing, "__version__", "0.0.0")
    assert made("3000", None)[0] == 1


def test_a_full_run_is_that_of_the_notebooks() -> None:
    found = set()
    for path in (ROOT / "examples").glob("*.ipynb"):
        if "needs" not in json.loads(path.read_text(encoding="utf-8"))["metadata"]:
            found |= set(re.findall(r'environ\.get\(\\"(\w+)\\", (\d+)\)', path.read_text(encoding="utf-8")))
    assert found == {(name, str(full)) for name, full in _generator().FULL.items()}


def test_an_included_file_names_the_files_that_are_no_pages() -> None:
    included = ["[a metric](docs/a.md#b), [MIT](LICENSE), [here](#x) and [there](https://there.org)"]
    _generator().name_files_of_the_repository(None, Path("../CONTRIBUTING.md"), "project", included)
    assert included == ["[a metric](docs/a.md#b), MIT, `LICENSE`, [here](#x) and [there](https://there.org)"]


@pytest.mark.parametrize("address", ["", "https://there.org/ehrsequencing"])
def test_the_site_links_to_the_repository_once_its_address_is_known(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sphinx")
    source, line = (DOCS / "conf.py").read_text(encoding="utf-8"), r'(?m)^REPOSITORY = ".*"'
    assert re.search(line, source)
    monkeypatch.setattr(sys, "path", [*sys.path])  # conf.py adds its folder
    settings: dict[str, Any] = {"__file__": str(DOCS / "conf.py")}
    exec(re.sub(line, f'REPOSITORY = "{address}"', source), settings)
    assert [link["url"] for link in settings["html_theme_options"]["icon_links"]] == [address] * bool(address)


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_pages", ROOT / "tools" / "site_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
