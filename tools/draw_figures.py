"""Draws the figures of docs/models.md as SVG: `python tools/draw_figures.py`. The same bytes every time.

What a figure says about attention and weights is asked of the package: who sees whom is read off `attention` under the
real plans, and the weights of the importance figure come from `segment_softmax`.
"""

from dataclasses import dataclass, field
from html import escape
from pathlib import Path

import torch
from torch import Tensor

from ehrsequencing import VisitBatch
from ehrsequencing.models.attention import AttentionPlan, codes_plan, time_plan
from ehrsequencing.models.behrt import Tokens
from ehrsequencing.models.segments import segment_softmax

HERE = Path(__file__).parents[1] / "docs" / "figures"
# Okabe and Ito's palette: told apart by colour-blind readers, and in grey.
BLUE, ORANGE, GREEN, SKY, RED = "#0072B2", "#E69F00", "#009E73", "#56B4E9", "#D55E00"
INK, GREY, PALE, WHITE = "#1f2328", "#59636e", "#f0f3f6", "#ffffff"
VISITS = (SKY, GREEN, ORANGE, BLUE)  # one colour a visit

# One subject of the figures: visits of 3, 1 and 2 codes, then a query.
CODES_PER_ROW, IS_QUERY = (3, 1, 2, 0), (False, False, False, True)


@dataclass
class Picture:
    """An SVG on its own white ground."""

    width: int
    height: int
    title: str
    parts: list[str] = field(default_factory=list)

    def rect(
        self,
        x: float,
        y: float,
        w: float,
        h: float,
        *,
        fill: str,
        stroke: str = "none",
        dash: bool = False,
    ) -> None:
        """A box with slightly round corners."""
        style = ' stroke-dasharray="4 3"' if dash else ""
        radius = 3 if min(w, h) < 40 else 8
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="{radius}" fill="{fill}" stroke="{stroke}" '
            f'stroke-width="1.5"{style}/>'
        )

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: int = 15,
        anchor: str = "middle",
        bold: bool = False,
        fill: str = INK,
    ) -> None:
        """One line of text; y is its base line."""
        weight = ' font-weight="bold"' if bold else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" fill="{fill}"{weight}>'
            f"{escape(words, quote=False)}</text>"
        )

    def line(
        self,
        x1: float,
        y1: float,
        x2: float,
        y2: float,
        *,
        color: str = GREY,
        width: float = 1.5,
        arrow: bool = True,
    ) -> None:
        """A line, by default with an arrow's head at its end."""
        head = ' marker-end="url(#head)"' if arrow else ""
        self.parts.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{color}" stroke-width="{width:g}"{head}/>'
        )

    def save(self, name: str) -> None:
        """Write the file beside this script."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'height="{self.height}" role="img" aria-label="{escape(self.title)}" '
            "font-family=\"Helvetica, Arial, 'Liberation Sans', sans-serif\">",
            f"<title>{escape(self.title)}</title>",
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto-start-reverse"><path d="M0 0 L8 4 L0 8 z" fill="{GREY}"/></marker></defs>',
            f'<rect width="{self.width}" height="{self.height}" rx="10" fill="{WHITE}"/>',
        )
        (HERE / name).write_text("\n".join([*head, *self.parts, "</svg>"]) + "\n", encoding="utf-8")


def subject_batch(codes_per_row: tuple[int, ...], is_query: tuple[bool, ...]) -> VisitBatch:
    """One subject with so many codes in each visit and query."""
    offsets = torch.tensor([0, *codes_per_row]).cumsum(0)
    n = len(codes_per_row)
    return VisitBatch(
        codes=torch.arange(1, int(offsets[-1]) + 1),
        visit_offsets=offsets,
        subject_offsets=torch.tensor([0, n]),
        age_years=torch.full((n,), 60.0),
        delta_days=torch.zeros(n),
        is_query=torch.tensor(is_query),
    )


def who_sees(plan: AttentionPlan, rows: int) -> list[list[bool]]:
    """The plan's (rows, rows) mask: with equal scores, attention to one-hot values is positive where a row looks."""
    zeros = torch.zeros(rows, rows)
    weights: Tensor = plan.attend(zeros, zeros, torch.eye(rows), heads=1)
    return [[bool(weight > 0) for weight in row] for row in weights]


# ---- the two architectures -------------------------------------------------------------------------------------------

TOP, BOX, GAP, WIDE = (
    84,
    58,
    58,
    420,
)  # first glyphs, height of a box, between boxes, width of a column


def glyphs(
    picture: Picture, x: float, y: float, counts: tuple[int, ...], *, vectors: bool = False
) -> float:
    """Squares in the colours of their visits, the query's white with a question mark; returns the end."""
    for row, count in enumerate(counts):
        for _ in range(count):
            query = IS_QUERY[row]
            height = 26 if vectors else 18
            picture.rect(
                x,
                y - height / 2,
                18,
                height,
                fill=WHITE if query else VISITS[row],
                stroke=INK,
                dash=query,
            )
            if query:
                picture.text(x + 9, y + 5, "?", size=14, bold=True)
            x += 21
        x += 12 if count else 0
    return x


def column(
    picture: Picture,
    x: float,
    title: str,
    name: str,
    stages: list[tuple[int, str, list[str], str, str]],
) -> None:
    """One architecture: (height in rows, part, its lines, what flows out of it, the shape of that)."""
    picture.text(x + WIDE / 2, 32, title, size=20, bold=True)
    picture.text(x + WIDE / 2, 54, name, size=15, fill=GREY)
    flow(picture, x, TOP, "codes", "(K,) codes, packed")
    y = TOP + 32
    for rows, part, lines, kind, shape in stages:
        height = rows * BOX + (rows - 1) * GAP
        picture.rect(x, y, WIDE, height, fill=PALE, stroke=BLUE)
        first = y + height / 2 - 10 * len(lines) + 6
        picture.text(x + WIDE / 2, first, part, size=17, bold=True)
        for i, line in enumerate(lines, start=1):
            picture.text(x + WIDE / 2, first + 20 * i, line, size=15)
        if kind:
            flow(picture, x, y + height + GAP / 2, kind, shape)
        y += height + GAP
    picture.line(x + 40, y - GAP + 4, x + 40, y - GAP + 24)
    picture.text(
        x + 60, y - GAP + 22, "logits: (N, causes, bins), or (N,) with head=visit", anchor="start"
    )


def flow(picture: Picture, x: float, y: float, kind: str, shape: str) -> None:
    """An arrow, what flows along it, and its shape."""
    tokens = tuple(max(n, 1) for n in CODES_PER_ROW)
    counts = {
        "codes": CODES_PER_ROW,
        "vectors": CODES_PER_ROW,
        "tokens": tokens,
        "rows": (1, 1, 1, 1),
    }[kind]
    picture.line(x + 40, y - 25, x + 40, y + 26)
    glyphs(picture, x + 56, y, counts, vectors=kind != "codes")
    picture.text(x + WIDE, y + 5, shape, anchor="end")


def architectures() -> None:
    """Flat and hierarchical side by side."""
    picture = Picture(920, 705, "Data flow and shapes of flat and hierarchical BEHRT, side by side")
    column(
        picture,
        25,
        "Flat",
        "BEHRTForSurvival",
        [
            (
                1,
                "BEHRTEmbedding",
                ["LN(code + age + visit id + position)"],
                "tokens",
                "(T, d) tokens",
            ),
            (
                2,
                "BEHRT",
                [
                    "TransformerLayer × layers over all tokens:",
                    "a code sees the codes of its own visit",
                    "and of the visits before it",
                    "up to (V·C)² pairs a layer",
                ],
                "tokens",
                "(T, d) states",
            ),
            (1, "aggregate_visits", ["mean of each visit's token states"], "rows", "(N, d) states"),
            (1, "SurvivalHead", ["W2 · gelu(W1 · LN)"], "", ""),
        ],
    )
    column(
        picture,
        475,
        "Hierarchical",
        "HierarchicalBEHRTForSurvival",
        [
            (
                1,
                "CodeEmbedding",
                ["identity + number (+ place + type)"],
                "vectors",
                "(K, d) code vectors",
            ),
            (
                1,
                "VisitEncoder",
                ["attention | mean | transformer | …, then an MLP"],
                "rows",
                "(N, d) visit vectors",
            ),
            (
                1,
                "VisitTimeEmbedding",
                ["+ visit index + age + time gap"],
                "rows",
                "(N, d) visits in time",
            ),
            (
                1,
                "TimelineEncoder",
                ["a visit sees itself and those before: V² pairs"],
                "rows",
                "(N, d) states",
            ),
            (1, "SurvivalHead", ["W2 · gelu(W1 · LN)"], "", ""),
        ],
    )
    picture.text(
        25,
        692,
        "One subject: visits of 3, 1 and 2 codes (K = 6) and a query “?” (N = 4 rows; T = 7 tokens, "
        "the query's marker included).",
        size=14,
        anchor="start",
        fill=GREY,
    )
    picture.save("architectures.svg")


# ---- who sees whom ---------------------------------------------------------------------------------------------------

CELL = 20


def matrix(
    picture: Picture,
    x: float,
    y: float,
    title: tuple[str, str],
    seen: list[list[bool]],
    names: list[str],
    owner: list[int],
    is_query: list[bool],
) -> None:
    """Who looks (rows) at whom (columns); thin frames around the codes of one visit."""
    n, left, top = len(names), x + 26, y + 66
    picture.text(x, y + 16, title[0], size=16, anchor="start", bold=True)
    picture.text(x, y + 36, title[1], size=14, anchor="start", fill=GREY)
    for i, name in enumerate(names):
        color = RED if is_query[i] else INK
        picture.text(left + CELL * i + CELL / 2, top - 6, name, size=13, fill=color)
        picture.text(left - 6, top + CELL * i + 15, name, size=13, anchor="end", fill=color)
        for j in range(n):
            fill = (ORANGE if is_query[i] else BLUE) if seen[i][j] else PALE
            picture.rect(left + CELL * j + 1, top + CELL * i + 1, CELL - 2, CELL - 2, fill=fill)
    for i in range(1, n):
        if len(set(owner)) < n and owner[i] != owner[i - 1]:  # several codes a visit
            picture.line(
                left + CELL * i,
                top,
                left + CELL * i,
                top + CELL * n,
                color=GREY,
                width=1,
                arrow=False,
            )
            picture.line(
                left,
                top + CELL * i,
                left + CELL * n,
                top + CELL * i,
                color=GREY,
                width=1,
                arrow=False,
            )


def visits_matrix(
    picture: Picture,
    x: float,
    y: float,
    title: tuple[str, str],
    *,
    window: int,
    ahead: bool = False,
) -> None:
    """A plan over visits: seven visits, a query after the third and one at the end."""
    is_query = [False, False, False, True, False, False, False, False, True]
    batch = subject_batch((0,) * len(is_query), tuple(is_query))
    seen = who_sees(time_plan(batch, window=window, bidirectional=ahead), len(is_query))
    numbers = iter(range(1, 10))
    names = ["?" if query else str(next(numbers)) for query in is_query]
    matrix(picture, x, y, title, seen, names, list(range(len(names))), is_query)


def tokens_matrix(
    picture: Picture, x: float, y: float, title: tuple[str, str], *, reach: int | None
) -> None:
    """A plan over codes: of flat tokens with a reach, or within visits without one."""
    asked = (False, False, False, True, False, False) if reach is not None else (False,) * 5
    batch = subject_batch((3, 1, 2, 0, 2, 1) if reach is not None else (3, 1, 2, 2, 1), asked)
    tokens = Tokens.of_batch(batch)
    plan = codes_plan(batch.visit_offsets)
    if reach is not None:
        plan = time_plan(batch, window=reach, offsets=tokens.offsets)
    owner: list[int] = tokens.row.tolist()
    is_query = [asked[row] for row in owner]
    letters = iter("abcdefghijkl")
    names = ["?" if query else next(letters) for query in is_query]
    matrix(picture, x, y, title, who_sees(plan, len(names)), names, owner, is_query)


def attention_masks() -> None:
    """The masks of the timeline, of the flat model and of the mini-transformer."""
    picture = Picture(
        920,
        690,
        "Who sees whom: attention of the timeline, the flat model and the mini-transformer",
    )
    picture.rect(20, 16, 16, 16, fill=BLUE)
    picture.text(44, 30, "a visit or code (row) sees this one (column)", anchor="start")
    picture.rect(380, 16, 16, 16, fill=ORANGE)
    picture.text(404, 30, "a query sees it; nobody sees a query but itself", anchor="start")
    visits_matrix(picture, 20, 60, ("Timeline, causal", "default: max_visits=512"), window=512)
    visits_matrix(
        picture,
        325,
        60,
        ("Timeline, sliding window", "max_visits=3: itself and two before"),
        window=3,
    )
    visits_matrix(
        picture,
        630,
        60,
        ("Timeline, bidirectional", "pretraining only; training refuses it"),
        window=512,
        ahead=True,
    )
    tokens_matrix(
        picture, 20, 365, ("Flat, causal by visit", "default: max_tokens=2048"), reach=2048
    )
    tokens_matrix(picture, 325, 365, ("Flat, whole visits back", "max_tokens=5"), reach=5)
    tokens_matrix(
        picture, 630, 365, ("Mini-transformer", "codes of one visit see one another"), reach=None
    )
    picture.text(
        20,
        675,
        "Numbers are visits, letters are codes (lines part their visits), “?” is a query. Drawn from "
        "the plans that the models run.",
        size=14,
        anchor="start",
        fill=GREY,
    )
    picture.save("who-sees-whom.svg")


# ---- importance ------------------------------------------------------------------------------------------------------

SCORES = (0.85, 0.45, 0.30)  # the example of the attention-pooling seed


def importance() -> None:
    """Independent scoring beside the mini-transformer."""
    weights: list[float] = segment_softmax(
        torch.tensor(SCORES), torch.tensor([0, 3]), torch.zeros(3).long()
    ).tolist()
    picture = Picture(
        920,
        470,
        "Attention pooling scores each code alone; in the mini-transformer codes see one another",
    )
    picture.text(225, 32, "Attention pooling", size=20, bold=True)
    picture.text(225, 54, "visit_encoder=attention", fill=GREY)
    picture.text(695, 32, "Mini-transformer", size=20, bold=True)
    picture.text(695, 54, "visit_encoder=transformer", fill=GREY)
    picture.line(460, 20, 460, 450, color=PALE, width=2, arrow=False)
    for i, (score, weight, color) in enumerate(
        zip(SCORES, weights, (SKY, GREEN, ORANGE), strict=True)
    ):
        x = 95 + 130 * i
        code(picture, x, 96, "ABC"[i], color)
        picture.line(x, 118, x, 150)
        picture.rect(x - 58, 152, 116, 36, fill=PALE, stroke=BLUE)
        picture.text(x, 175, "q·tanh(W e + b)", size=14)
        picture.line(x, 190, x, 222)
        picture.text(x + 8, 210, f"{score:.2f}", size=15, anchor="start")
        picture.line(x, 258, x, 290)
        picture.text(x + 8, 279, f"α = {weight:.2f}", size=15, anchor="start", bold=True)
        length = 200 * weight
        picture.rect(x - length / 2, 298, length, 14, fill=color, stroke=INK)
        picture.line(x, 318, 225 + (x - 225) * 0.35, 348)
    picture.rect(37, 222, 376, 36, fill=PALE, stroke=BLUE)
    picture.text(225, 245, "softmax over the visit's codes")
    result(picture, 225, "u = Σ α·e")
    picture.text(225, 432, "Each code is scored alone: what else is in", size=15, fill=GREY)
    picture.text(225, 452, "the visit changes α, never the score.", size=15, fill=GREY)
    for i, color in enumerate((SKY, GREEN, ORANGE)):
        x = 565 + 130 * i
        code(picture, x, 96, "ABC"[i], color)
        for j in range(3):
            picture.line(x, 118, 565 + 130 * j, 208, color=GREY)
        code(picture, x, 232, "ABC"[i] + "′", color)
        picture.line(x, 254, 695 + (x - 695) * 0.35, 348)
    result(picture, 695, "u = mean of e′")
    picture.text(695, 432, "Each code's vector depends on the others", size=15, fill=GREY)
    picture.text(695, 452, "before they are averaged: C² pairs a visit.", size=15, fill=GREY)
    picture.save("importance.svg")


def code(picture: Picture, x: float, y: float, name: str, color: str) -> None:
    """A code's vector."""
    picture.rect(x - 26, y - 20, 52, 40, fill=color, stroke=INK)
    picture.text(x, y + 6, name, size=18, bold=True)


def result(picture: Picture, x: float, words: str) -> None:
    """The visit's vector."""
    picture.rect(x - 90, 350, 180, 44, fill=WHITE, stroke=INK)
    picture.text(x, 378, words, size=18, bold=True)


if __name__ == "__main__":
    architectures()
    attention_masks()
    importance()
