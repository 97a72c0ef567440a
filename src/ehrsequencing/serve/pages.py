"""The pages of the server: the explorer, and one patient at the desk, typed into a form.

The form has the most frequent codes of the run's vocabulary. Its script asks `/predict` and `/explain` of this server,
as any other client does, and asks nobody else. Nothing that is typed is kept.
"""

from importlib.resources import files
from urllib.parse import quote

import numpy as np
from fastapi import APIRouter
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from markupsafe import Markup

from ehrsequencing.core.disclosure import SMALLEST_COUNT
from ehrsequencing.core.version import __version__
from ehrsequencing.explorer.codes import unit_of, words_of
from ehrsequencing.explorer.patients import curve_days
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.codes import CodeMatcher
from ehrsequencing.records.cohort import CohortBuilder
from ehrsequencing.records.events import BIRTH
from ehrsequencing.records.meds import FIXES
from ehrsequencing.reporting.wording import environment, hashed, json_text
from ehrsequencing.serve.predictor import Predictor
from ehrsequencing.serve.security import COOKIE

DESK = "/patient"
MOST_CODES = 300  # of the form, which shows the first 30 until somebody searches
_PATTERN = ("re:", "under:")  # how a pattern begins that is no code itself


def router(predictor: Predictor, explorer: str | None) -> APIRouter:
    """The pages; without an explorer the first of them is the desk."""
    routes, headers = APIRouter(), {"Content-Security-Policy": "frame-ancestors 'none'"}
    desk = patient_page(predictor)

    @routes.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def show(token: str | None = None) -> Response:
        """The explorer or the desk. A token in the address moves into a cookie."""
        if token is not None:
            moved = RedirectResponse("/", status_code=303)
            moved.set_cookie(COOKIE, quote(token), httponly=True, samesite="strict")
            return moved
        return HTMLResponse(explorer or desk, headers=headers)

    @routes.get(DESK, response_class=HTMLResponse, include_in_schema=False)
    async def show_patient() -> HTMLResponse:
        """One patient; the page says by itself what it may load."""
        return HTMLResponse(desk, headers=headers)

    return routes


def patient_page(predictor: Predictor) -> str:
    """The page on which one patient's record is typed, and its risk is shown."""
    marks = files("ehrsequencing.explorer") / "templates" / "marks.js"
    own = files("ehrsequencing.serve") / "templates" / "patient.js"
    script = marks.read_text(encoding="utf-8") + own.read_text(encoding="utf-8")
    about = form_of(predictor)
    return (
        environment("serve")
        .get_template("patient.html.jinja")
        .render(
            about=about,
            about_json=json_text(about),
            policy=f"script-src {hashed(script)}; connect-src 'self'; ",
            script=Markup(script),
            version=__version__,
        )
    )


def form_of(predictor: Predictor) -> dict[str, object]:
    """What can be typed and asked: codes with words, units and the usual range of their numbers; causes, horizons."""
    run, task, words = predictor.run, predictor.run.task, predictor.run.vocabulary
    frequent = frequent_codes(run)
    sexes = [code for code in frequent if code.upper().startswith(("SEX//", "GENDER//"))]
    named = task.index.code or ()
    index = CodeMatcher(named, parents=predictor.parents)
    exact = [one for one in index.plain if not one.startswith(_PATTERN) and not one.endswith("*")]
    begins = (
        [] if index.by_value else [*exact, *(c for c in frequent if index(c) and c not in exact)]
    )
    unasked = [CodeMatcher(run.manifest["excluded"], parents=predictor.parents)]
    unasked += CohortBuilder(task, parents=predictor.parents).cause_codes
    items = [c for c in frequent if c not in (*sexes, *begins) and not any(m(c) for m in unasked)]
    items, begins = items[:MOST_CODES], begins[:MOST_CODES]
    horizons = [] if run.is_visit_head else list(task.horizons)
    days = curve_days(task.horizons, start_days=task.blanking).tolist() if horizons else []
    listed = [*items, *begins, *sexes]
    # the 1st and 99th percentile of a code's numbers in training
    ends, at = np.array([0.01, 0.99]), np.linspace(0, 1, words.knots.shape[1])
    ranges = {
        token: [float(f"{one:.3g}") for one in np.interp(ends, at, words.knots[row])]
        for token, row in enumerate(words.scale)
        if row >= 0
    }
    return {
        "title": task.heading,
        "task": task.name,
        "birth": BIRTH,
        "causes": list(task.causes),
        "horizons_days": horizons,
        "main": horizons.index(run.main_horizon) if horizons else 0,
        "curve_days": days,
        "sexes": sexes,
        "index": begins,
        "periods": [c for c in task.censoring.start or () if not c.startswith(_PATTERN)][:1],
        "fixes": FIXES,
        "words": dict(zip(listed, words_of(listed, predictor.descriptions), strict=True)),
        "items": [
            {"code": code, "unit": unit_of(code), "range": ranges.get(words.index[code])}
            for code in items
        ],
    }


def frequent_codes(run: Run) -> list[str]:
    """Codes of the vocabulary that at least 11 training people have, the most frequent first."""
    known, reference = run.vocabulary, run.training_people
    share = dict.fromkeys(known.codes, 0.0) | dict(
        zip(known.codes, known.share.tolist(), strict=False)
    )
    people = reference["people"] if reference else 0
    if reference:
        share |= {c: n / people for c, (n, _) in reference["codes"].items() if c in share}
    is_safe = run.study.vocabulary.min_subjects >= SMALLEST_COUNT
    codes = [code for code in share if is_safe or share[code] * people >= SMALLEST_COUNT]
    return sorted(codes, key=lambda code: (-share[code], code))
