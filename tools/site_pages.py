"""Pages that are made and not written: the API, all settings, the gallery, and inventories of three other libraries."""

import ast
import hashlib
import inspect
import json
import os
import re
import tempfile
import tomllib
import zlib
from base64 import b64decode
from collections.abc import Iterator, MutableSequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

import ehrsequencing
from ehrsequencing import config, metrics, nn
from ehrsequencing.api.compare import RunComparison
from ehrsequencing.api.data import PreparedData
from ehrsequencing.api.evaluation import EvaluationResult
from ehrsequencing.api.paper import PaperTable
from ehrsequencing.api.predictions import StepFunction
from ehrsequencing.api.run import TrainedRun
from ehrsequencing.core import elsewhere
from ehrsequencing.core.text import format_days, parse_days
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.simulate import SimulationConfig

INVENTORIES = {
    "torch": "https://docs.pytorch.org/docs/stable/",
    "pandas": "https://pandas.pydata.org/docs/",
    "sklearn": "https://scikit-learn.org/stable/",
}
LINKS = {  # name → role and page; all that the docstrings and pages need
    "torch": {
        "torch.Tensor": ("py:class", "tensors.html#$"),
        "torch.nn.Module": ("py:class", "generated/torch.nn.Module.html#$"),
        "torch.nn.Linear": ("py:class", "generated/torch.nn.Linear.html#$"),
        "torch.device": ("py:class", "tensor_attributes.html#$"),
    },
    "pandas": {"pandas.DataFrame": ("py:class", "reference/api/$.html#$")},
    "sklearn": {
        "sklearn.base.BaseEstimator": ("py:class", "modules/generated/$.html#$"),
        "sklearn.model_selection.GridSearchCV": ("py:class", "modules/generated/$.html#$"),
    },
}
BEHIND = [  # classes that people get from the public names and do not make themselves
    TrainedRun,
    PreparedData,
    EvaluationResult,
    RunComparison,
    PaperTable,
    StepFunction,
    SurvivalModel,
]
NOTEBOOK_SECONDS = 900
FULL = {"SUBJECTS": 2000, "EPOCHS": 20}  # what the notebooks take if nothing else is asked for


def everything(docs: Path) -> None:
    """Write all generated files into `_generated`, those of the gallery only where a notebook has changed."""
    out = docs / "_generated"
    out.mkdir(exist_ok=True)
    written = {
        **api_pages(),
        "settings.md": settings_page(),
        "coming-from.md": coming_from_page(),
    }
    gallery = list(executed(docs.parent / "examples", out / "gallery"))
    written["gallery-index.md"] = gallery_index(gallery)
    for stale in {path.name for path in out.glob("*.md")} - written.keys():
        (out / stale).unlink()
    for name, text in written.items():
        path = out / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    for library, links in LINKS.items():
        (out / f"{library}.inv").write_bytes(inventory(library, links))


# ---- the API -----------------------------------------------------------------------------------------------------


def api_pages() -> dict[str, str]:
    """A page for each module of `api` and for each other package that has public names, and one that lists them."""
    found = {f"ehrsequencing.{name}": module for name, module in ehrsequencing._PUBLIC.items()}
    found |= {f"{one.__module__}.{one.__qualname__}": one.__module__ for one in BEHIND}
    for package in (metrics, nn):
        found |= {f"{package.__name__}.{name}": package.__name__ for name in package.__all__}
    modules: dict[str, list[str]] = {}
    for name, module in sorted(found.items(), key=lambda item: item[1]):
        parts = module.split(".")
        modules.setdefault(".".join(parts[: 3 if parts[1] == "api" else 2]), []).append(name)
    pages, lines = {}, ["# Python API", ""]
    lines += ["`import ehrsequencing as eh` gives these names; [Python](../python.md) shows them"]
    lines += ["in use. There is a page for each module.", "", "| module | names |", "|---|---|"]
    for module, names in modules.items():
        shown, title = ", ".join(f"`{_as_typed(name)}`" for name in names), module.partition(".")[2]
        lines.append(f"| [{title}]({module}.md) | {shown} |")
        intro = ["Plain arrays in, a number out. [Metrics](../metrics.md) has the definitions.", ""]
        is_metrics = module == metrics.__name__
        body = [f"# {title}", "", *(intro if is_metrics else []), *_directives(names)]
        pages[f"{module}.md"] = "\n".join(body)
    lines += ["", "```{toctree}", ":hidden:", "", *modules, "```", ""]
    return {"api.md": "\n".join(lines), **pages}


def _as_typed(name: str) -> str:
    """`fit` and `nn.SurvivalHead`, as after `eh.`; of a class that nobody makes its own name."""
    short = name.removeprefix("ehrsequencing.")
    return short if short.count(".") < 2 else short.rpartition(".")[2]


def _directives(names: list[str]) -> list[str]:
    """An `autodoc` directive for each name."""
    lines = []
    for name in names:
        value: Any = ehrsequencing
        for part in name.split(".")[1:]:
            value = getattr(value, part)
        kind = "class" if inspect.isclass(value) else "function"
        settings = inspect.isclass(value) and issubclass(value, BaseModel)
        members = ["   :members:"] if kind == "class" and not settings else []
        lines += ["```{eval-rst}", f".. auto{kind}:: {name}", *members, "```", ""]
    return lines


def literal_blocks(
    app: object, what: str, name: str, value: object, options: object, lines: MutableSequence[str]
) -> None:
    """In docstrings an indented block after a blank line is a formula or a command, and keeps its spaces."""
    found: list[str] = []
    for number, line in enumerate(lines):
        before = found[-1] if found else ""
        above = next((old for old in reversed(found) if old.strip()), "")
        starts = (
            line.startswith("    ")
            and not before.strip()
            and above
            and not above.startswith((" ", ":", ".."))
        )
        if starts and number:
            found += ["::", ""]
        found.append(line)
    lines[:] = found


# ---- settings ----------------------------------------------------------------------------------------------------


def settings_page() -> str:
    """Every section of a study file and of an import file: setting, values, default, meaning."""
    lines = ["# Settings", ""]
    lines += [
        "Give them in a YAML file (`--config study.yaml`) or on the command line as `section.key=value`. An unknown"
    ]
    lines += [
        "setting is an error that names what comes close. This page is generated from the classes.",
        "",
    ]
    sections = dict(_sections(config.StudyConfig))
    others = {"import": config.ImportConfig, "simulate": SimulationConfig}
    for name, kind in {**sections, **others}.items():
        lines += [
            f"## {name}",
            "",
            (inspect.getdoc(kind) or "").split("\n\n")[0].replace("\n", " "),
            "",
        ]
        lines += ["| setting | values | default | meaning |", "|---|---|---|---|"]
        meanings = _meanings(kind)
        for key, field in kind.model_fields.items():
            row = (f"`{key}`", _values(field), _default(field), meanings.get(key, ""))
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")
        lines.append("")
    return "\n".join(lines)


def _sections(kind: type[BaseModel], before: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """The sections of a class of settings, those within sections after them."""
    for name, field in kind.model_fields.items():
        inner = _model_of(field.annotation)
        if inner is not None:
            yield f"{before}{name}", inner
            yield from _sections(inner, f"{before}{name}.")


def _model_of(annotation: Any) -> type[BaseModel] | None:
    inner = getattr(annotation, "__args__", ()) or (annotation,)
    return next(
        (one for one in inner if isinstance(one, type) and issubclass(one, BaseModel)), None
    )


WORDS = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true / false",
    type(None): "null",
}


def _values(field: Any) -> str:
    """What a setting may be, as a reader of YAML knows it."""
    if _is_duration(field):
        return "duration"
    bounds = {
        name: getattr(one, name)
        for one in field.metadata
        for name in ("ge", "le")
        if hasattr(one, name)
    }
    if len(bounds) == 2:
        return f"{_words(field.annotation)}, {bounds['ge']} to {bounds['le']}"
    return _words(field.annotation)


def _is_duration(field: Any) -> bool:
    return any(getattr(one, "func", None) is parse_days for one in field.metadata)


def _words(annotation: Any) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " / ".join(f"`{value}`" for value in inner)
    if origin in (tuple, list):
        return "list"
    if origin is dict:
        return "mapping"
    if origin is Annotated:
        is_days = any(getattr(one, "func", None) is parse_days for one in inner[1:])
        return "duration" if is_days else _words(inner[0])
    if origin in (Union, UnionType):
        return " or ".join(_words(one) for one in inner)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    return WORDS.get(annotation, "")


def _default(field: Any) -> str:
    if field.is_required():
        return "required"
    value = field.default if field.default is not PydanticUndefined else field.default_factory()
    if isinstance(value, BaseModel):
        return ""
    if _is_duration(field) and isinstance(value, float):
        return f"`{format_days(value)}`"
    return f"`{json.dumps(value, default=str)}`"


def _meanings(kind: type[BaseModel]) -> dict[str, str]:
    """The comment beside or above each field in the source of its class."""
    source = inspect.getsource(kind).splitlines()
    found = {}
    for node in ast.parse("\n".join(source)).body[0].body:  # type: ignore[attr-defined]
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        beside = [line.partition("  # ")[2] for line in source[node.lineno - 1 : node.end_lineno]]
        above: list[str] = []
        for line in reversed(source[: node.lineno - 1]):
            if not line.strip().startswith("# ") or "----" in line:
                break
            above.insert(0, line.strip().removeprefix("# "))
        text = " ".join(
            part for part in [*above, *beside] if part and not part.startswith("type: ignore")
        )
        # what is not code must not be read as markup
        found[node.target.id] = re.sub(
            r"`[^`]*`|[<>{}*_]", lambda m: m[0] if len(m[0]) > 1 else f"\\{m[0]}", text
        )
    return found


# ---- names of other libraries --------------------------------------------------------------------------------------


def coming_from_page() -> str:
    """The name there and what to type here, from the table that answers wrong guesses in Python."""
    lines = ["# Coming from another library", ""]
    lines += [
        "For users of lifelines, scikit-survival, PyHealth, PyTorch, OHDSI's tools or R. Type a name of theirs and the "
        "error says the same. `run` is what `eh.fit` and `eh.load` give, `ev` what `eh.evaluate` gives.",
        "",
    ]
    table = Path(elsewhere.__file__).with_suffix(".toml").read_text(encoding="utf-8")
    for library, names in tomllib.loads(table)["coming from"].items():
        lines += [f"## {library}", "", "| there | here |", "|---|---|"]
        for one in names.split():
            owner, _, name = one.rpartition(".")
            shown = f"{name}=" if owner in ("arguments", "cox") else name
            place = "in `eh.metrics`: " if owner == metrics.__name__ else ""
            here = elsewhere.right_way(owner, name).replace("|", "\\|").replace("*", "\\*")
            lines.append(f"| `{shown}` | {place}{here} |")
        lines.append("")
    return "\n".join(lines)


# ---- the gallery -------------------------------------------------------------------------------------------------


def executed(examples: Path, out: Path) -> Iterator[tuple[str, str, str | None]]:
    """Run the notebooks again that changed, or ran in another way; name, title, and a picture of each.

    Those that need data which is not in this repository (`needs` in their metadata) keep their outputs.
    """
    import nbclient
    import nbformat

    out.mkdir(parents=True, exist_ok=True)
    size = {name: int(os.environ.get(name, full)) for name, full in FULL.items()}
    way = f"{ehrsequencing.__version__} {size}".encode()
    for path in sorted(examples.glob("*.ipynb")):
        content = hashlib.sha256(path.read_bytes() + way).hexdigest()
        done = out / path.name
        if not done.is_file() or json.loads(done.read_text())["metadata"].get("source") != content:
            book = nbformat.read(path, as_version=4)
            if "needs" not in book.metadata:
                with tempfile.TemporaryDirectory() as folder:
                    os.environ["TMPDIR"] = folder
                    resources = {"metadata": {"path": folder}}
                    nbclient.NotebookClient(
                        book, timeout=NOTEBOOK_SECONDS, resources=resources
                    ).execute()
                    del os.environ["TMPDIR"]
                if any(size[name] < full for name, full in FULL.items()):
                    title, _, text = book.cells[0].source.partition("\n")
                    book.cells[0].source = f"{title}\n\n{short_run(size)}\n{text}"
            book.metadata["source"] = content
            nbformat.write(book, done)
        book = json.loads(done.read_text())
        title = "".join(book["cells"][0]["source"]).partition("\n")[0].removeprefix("# ")
        yield path.stem, title, _pictures(book, out, path.stem)


def short_run(size: dict[str, int]) -> str:
    """The note on a page whose notebook ran on few patients or for few epochs."""
    ran = f"{size['SUBJECTS']:,} patients and {size['EPOCHS']:,} epochs"
    return f":::{{warning}}\nRun on {ran} to test the page: not a result.\n:::\n"


def _pictures(book: dict[str, Any], folder: Path, name: str) -> str | None:
    """Write a notebook's pictures, the one of most bytes under its name; that name, or None where it has none.

    What `plot_risk` and its like draw is `plot_risk.png`, for the Python page; kept outputs are of other data.
    """
    found: list[bytes] = []
    for cell in book["cells"]:
        drawn = re.search(r"\.(plot_\w+)\(", "".join(cell["source"]))
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                found.append(b64decode(output["data"]["image/png"]))
                if drawn and "needs" not in book["metadata"]:
                    (folder / f"{drawn[1]}.png").write_bytes(found[-1])
    if not found:
        return None
    (folder / f"{name}.png").write_bytes(max(found, key=len))
    return f"{name}.png"


def gallery_index(found: list[tuple[str, str, str | None]]) -> str:
    """Cards with a picture each."""
    lines = [
        "# Gallery",
        "",
        "Notebooks of `examples/`. The first four have simulated records and were run when this site was made. The "
        "last two keep their outputs: their records are public, and not in this repository.",
    ]
    lines += ["", "::::{grid} 1 2 2 2", ":gutter: 3", ""]
    for name, title, picture in found:
        lines += [f":::{{grid-item-card}} {title}", f":link: gallery/{name}", ":link-type: doc"]
        lines += [f":img-top: gallery/{picture}"] if picture else []
        lines += [":img-alt: A picture of the notebook"] if picture else []
        lines += [":::", ""]
    lines += ["::::", "", "```{toctree}", ":hidden:", ""]
    lines += [f"{title} <gallery/{name}>" for name, title, _ in found]
    return "\n".join([*lines, "```", ""])


# ---- links -------------------------------------------------------------------------------------------------------


def inventory(library: str, links: dict[str, tuple[str, str]]) -> bytes:
    """An inventory of another library's names, as intersphinx reads it."""
    head = f"# Sphinx inventory version 2\n# Project: {library}\n# Version: \n"
    head += "# The remainder of this file is compressed using zlib.\n"
    rows = "".join(f"{name} {role} 1 {page} -\n" for name, (role, page) in links.items())
    return head.encode() + zlib.compress(rows.encode())


def link_to_repository(app: object, name: str, source: list[str]) -> None:
    """A link out of `docs/`, or to a page that is not on the site, becomes the name of the file in the repository.

    A notebook is on the site: its link leads to its page in the gallery.
    """
    if name.startswith("_generated"):
        return
    source[0] = re.sub(
        r"\[([^\]]*)\]\(\.\./examples/([^)/]*)\.ipynb\)",
        r"{doc}`\1 </_generated/gallery/\2>`",
        source[0],
    )
    source[0] = re.sub(r"\[([^\]]*)\]\(\.\./([^)#]*)[^)]*\)", r"\1, `\2`", source[0])
    source[0] = re.sub(
        r"\[([^\]]*)\]\(((?:decisions\.md|written-by-hand\.md|lab-notes)[^)#]*)[^)]*\)",
        r"\1, `docs/\2`",
        source[0],
    )


def name_files_of_the_repository(app: object, path: Path, parent: str, content: list[str]) -> None:
    """In an included file of the repository a link to a file that is no page becomes its name; `docs/` are pages."""
    content[0] = re.sub(
        r"\[([^\]]*)\]\((?!docs/|https?:|#)([^)#]*)[^)]*\)", r"\1, `\2`", content[0]
    )
