"""What only people can tell of a study (TRIPOD+AI, PROBAST): the questions, and the YAML file with the answers.

`examples/tripod.yaml` is an empty file of this kind. What a file leaves open, the report marks as to be filled in by
the authors.
"""

from pathlib import Path

from ehrsequencing.config.files import read_yaml
from ehrsequencing.core.errors import EhrseqError

# key in the file: (title with the item of TRIPOD+AI or the domain of PROBAST, what is asked)
QUESTIONS = {
    "intended_use": (
        "Intended use and users (3b, 27)",
        "who acts on the risk, in which decision, at which moment of care",
    ),
    "health_inequalities": (
        "Health inequalities (3c, 14)",
        "in whom errors would do most harm, and who reviewed the results for them",
    ),
    "protocol": (
        "Protocol and registration (18c, 18d)",
        "where the plan of this study can be read, and what was changed",
    ),
    "ethics": ("Ethics approval (17)", "committee and reference, or why no approval is needed"),
    "data_governance": (
        "Data governance (5, 18e)",
        "legal basis, licence, data use agreement, who may read this report",
    ),
    "setting": (
        "Setting and treatments (6a, 6c)",
        "where care was given, and which treatments may have changed the outcome",
    ),
    "code_review": (
        "Clinical review of the codes (8, 9)",
        "who confirmed that outcome, index and censoring codes mean what is claimed",
    ),
    "outcome_assessment": (
        "Outcome assessment (8b, PROBAST 3)",
        "whether it was assessed in the same way in everyone, blind to the predictors",
    ),
    "predictors_in_use": (
        "Predictors at hand in use (PROBAST 2)",
        "whether every input is recorded in time where the model would be used",
    ),
    "sample_size": (
        "Reason for the cohort's size (10)",
        "why this many subjects are enough for the decision in question",
    ),
    "external_validation": (
        "External validation (12, PROBAST 1)",
        "another hospital, country or period, by people who did not build the model",
    ),
    "monitoring": (
        "Monitoring (27c)",
        "how drift and harm will be noticed in use, and who can switch the model off",
    ),
    "public_involvement": (
        "Patient and public involvement (19)",
        "who was asked, and what changed",
    ),
    "responsible": (
        "Responsible person (18a, 18b)",
        "name and contact, funding, conflicts of interest",
    ),
}


def read_tripod(path: str | Path | None) -> dict[str, str]:
    """The answers of a file by their keys, without those that it leaves empty; none without a file.

    Raises:
        EhrseqError: The file cannot be read, has a key that is no question, or an answer that is no text.
    """
    if path is None:
        return {}
    answers = {}
    for key, answer in read_yaml(Path(path)).items():
        if key not in QUESTIONS:
            raise EhrseqError(
                f"{key!r} is no question", where=str(path), fix=f"use {', '.join(QUESTIONS)}"
            )
        if answer is not None and not isinstance(answer, str | int | float):
            raise EhrseqError(
                f"the answer to {key!r} is no text",
                where=str(path),
                fix="write one text for each key",
            )
        if text := " ".join(str(answer or "").split()):
            answers[key] = text
    return answers


def template() -> str:
    """An empty file, with each question as a comment."""
    head = (
        "# What only people can tell of a study (TRIPOD+AI items, PROBAST domains). Fill in what you know, and give\n"
        "# the file to ehrseq evaluate RUN evaluation.tripod=FILE; --redraw adds it to a report.\n"
    )
    return head + "".join(
        f"\n# {title}: {asked}\n{key}:\n" for key, (title, asked) in QUESTIONS.items()
    )
