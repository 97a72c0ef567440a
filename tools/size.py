"""How large the source is: `python tools/size.py [FOLDER]` prints statements, files and tokens a code line, by room.

A statement is an `ast.stmt` node. Tokens are counted outside docstrings, comments and layout, and divided by the
lines that hold any. Budgets are in statements, because a budget in lines is met by writing denser lines.
"""

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
ROOT = Path(__file__).parents[1]


def docstring_lines(tree: ast.AST) -> set[int]:
    """The lines that docstrings cover."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        first = node.body[0] if node.body else None
        if (
            isinstance(first, ast.Expr)
            and isinstance(first.value, ast.Constant)
            and isinstance(first.value.value, str)
        ):
            lines.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines


def measure(path: Path) -> Counter[str]:
    """Statements, tokens, code lines and lines of one file."""
    source = path.read_text()
    tree = ast.parse(source)
    skipped = docstring_lines(tree)
    tokens = 0
    code_lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in LAYOUT or token.start[0] in skipped:
            continue
        tokens += 1
        code_lines.update(range(token.start[0], token.end[0] + 1))
    statements = sum(isinstance(node, ast.stmt) for node in ast.walk(tree))
    sizes = {"files": 1, "statements": statements, "tokens": tokens, "code": len(code_lines)}
    return Counter(sizes | {"lines": source.count("\n")})


def main(folder: Path) -> None:
    """Print the table."""
    rooms: dict[str, Counter[str]] = {}
    longest = Counter[str]()
    for path in sorted(folder.rglob("*.py")):
        place = path.relative_to(folder)
        room = place.parts[0] if len(place.parts) > 1 else "(face)"
        sizes = measure(path)
        rooms[room] = rooms.get(room, Counter()) + sizes
        longest[str(place)] = sizes["lines"]
    total = sum(rooms.values(), Counter())
    print(f"{'room':14} {'statements':>10} {'files':>6} {'lines':>7} {'tokens/line':>12}")
    for room, sizes in [*sorted(rooms.items()), ("total", total)]:
        density = sizes["tokens"] / max(sizes["code"], 1)
        print(
            f"{room:14} {sizes['statements']:>10,} {sizes['files']:>6} {sizes['lines']:>7,} {density:>12.1f}"
        )
    print("longest file:", "{} ({} lines)".format(*longest.most_common(1)[0]))
    tests = sum(path.read_text().count("\n") for path in (ROOT / "tests").rglob("*.py"))
    print(f"tests: {tests:,} lines")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "src/ehrsequencing")
