"""`run.plot_effect`: the mean risk over the values of a code."""

from typing import Any

from ehrsequencing.api import plots
from ehrsequencing.api.cox import named_codes
from ehrsequencing.api.predictions import opened
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.text import day_of
from ehrsequencing.explain import Question
from ehrsequencing.explain.cohort import newest_numbers, sampled_people, value_effect
from ehrsequencing.prediction.run import Run


def plot_effect_of_run(
    run: Run,
    code: str,
    data: Any = None,
    *,
    horizon: str | float | None = None,
    cause: str | None = None,
    facts: dict[str, Any] | None = None,
    progress: bool = True,
    ax: "plots.Axes | None" = None,
) -> "plots.Axes":
    """The effect of a value as a curve: the mean risk if everybody's newest number of a code were this.

    The number is moved from its 5th to its 95th percentile in the records of up to 1,000 people, at their last
    prediction times; all other rows stay as they are. It is an association in the model, not what a treatment
    would change.

    Args:
        run: The run.
        code: A code with numbers; the part of its name after the last `//` is enough, and so is a part of it that no
            other code with numbers has.
        data: As in `predict`; default: the records that the run was trained on.
        horizon: As in `"1y"`, or a number of days; default: the main one of the report.
        cause: Default: the task's first outcome.
        facts: As in `predict`.
        progress: Whether to show a bar.
        ax: Axes of matplotlib to draw into; default: new ones.

    Returns:
        The axes.

    Raises:
        EhrseqError: There is no such code with numbers, fewer than 11 people have different numbers of it, or there is
            no such cause or horizon.

    Example:
        >>> import ehrsequencing as eh
        >>> some = eh.read_meds("meds/", subjects=[*range(1, 41)])
        >>> ax = eh.load("runs/hf").plot_effect("marker", some, horizon="1y", progress=False)
        >>> ax.get_ylabel()
        'mean risk of hf by 1y'
    """
    question = Question.for_run(
        run,
        cause=cause,
        horizon_days=None if horizon is None else day_of(horizon),
    )
    source = run.prepared().manifest["data_path"] if data is None else data
    with opened(run, source, facts=facts, show=progress, label="moving values") as records:
        newest = newest_numbers(sampled_people(records, 1000))
        known = sorted(newest)
        found = (
            named_codes(code, known, where="codes with numbers")[1] if isinstance(code, str) else []
        )
        if len(found) != 1 or found[0] not in known:
            fix = f"name one, as in {', '.join(known[:3])}; ax= draws several into one figure"
            raise EhrseqError(f"{code!r} is not one code with numbers", where="code", fix=fix)
        value, risk = value_effect(question, records, newest, found[0])
    return plots.effect(value, risk, code=found[0], question=question.text, ax=ax)
