"""The site without building it: every page is listed, all are short enough, and a newcomer reads few of them."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

import ehrsequencing

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


def test_at_most_45_000_words() -> None:
    assert sum(words(text) for text in pages().values()) <= 45_000


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


def test_one_version_everywhere() -> None:
    version = ehrsequencing.__version__
    for file, line in {
        "CITATION.cff": f"version: {version}\n",
        "packaging/conda/recipe.yaml": f'version: "{version}"\n',
        "CHANGELOG.md": f"## {version}\n",
    }.items():
        assert line in (ROOT / file).read_text(encoding="utf-8"), file


def test_settings_are_found_with_their_meaning() -> None:
    page = _generator().settings_page()
    assert "| `window` | duration | `1h` |" in page
    assert "| `size` | `small` / `medium` / `large` or null | `null` | d64 2 layers" in page
    assert [row for row in page.split("\n") if row.startswith("| `") and row.endswith("|  |")] == []


def test_the_api_page_groups_every_public_name(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = _generator()
    assert ".. autofunction:: ehrsequencing.fit" in generator.api_page()
    monkeypatch.delitem(generator.API, "Errors")
    with pytest.raises(RuntimeError, match="EhrseqError"):
        generator.api_page()


def test_a_link_to_a_notebook_leads_to_the_gallery_and_others_out_of_docs_to_a_name() -> None:
    source = ["A [notebook](../examples/6-p12.ipynb), the [licence](../LICENSE) and a [note](lab-notes/trials.md#a)."]
    _generator().link_to_repository(None, "evidence", source)
    assert source == [
        "A {doc}`notebook </_generated/gallery/6-p12>`, the licence, `LICENSE` and a note, `docs/lab-notes/trials.md`."
    ]


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
