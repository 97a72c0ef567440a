"""The site without building it: every page is listed, all are short enough, and a newcomer reads few of them."""

import json
import operator
import re
from pathlib import Path

import pytest

import ehrsequencing
from ehrsequencing.simulate import SimulationConfig
from tools import site_pages

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
    page = site_pages.settings_page()
    assert "| `window` | duration | `1h` |" in page
    assert "| `size` | `small` / `medium` / `large` or null | `null` | " in page
    assert [row for row in page.split("\n") if row.startswith("| `") and row.endswith("|  |")] == []


def test_every_knob_of_the_simulator_is_listed_with_its_default_and_range() -> None:
    page = site_pages.settings_page().partition("## simulate")[2]
    rows = re.findall(r"(?m)^\| `(\w+)` \| [a-z ]+, (\S+) to (\S+) \| `(.+)` \| .+ \|$", page)
    listed = {name: bounds for name, *bounds in rows}
    for knob, field in SimulationConfig.model_fields.items():
        if field.annotation in (int, float):
            low, high = (next(getattr(at, end) for at in field.metadata if hasattr(at, end)) for end in ("ge", "le"))
            assert listed[knob] == [str(low), str(high), json.dumps(field.default)]
    assert len(listed) > 35


def test_every_name_on_the_page_for_users_of_other_libraries_has_its_answer() -> None:
    rows = re.findall(r"(?m)^\| `(\S+?)=?` \| (.*) \|$", site_pages.coming_from_page())
    assert len(rows) > 50
    assert [name for name, here in rows if not here.removeprefix("in `eh.metrics`: ")] == []
    for name, here in rows:
        if name in {"CoxPHFitter", "cross_val_score", "runPlp"}:
            with pytest.raises(AttributeError, match=re.escape(here)):
                getattr(ehrsequencing, name)


def test_each_public_name_is_on_the_page_of_its_module_and_on_no_other() -> None:
    pages = site_pages.api_pages()
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
