"""What is read of the manifests of runs, as types; `core.outputs` writes and checks them."""

from typing import Any, NotRequired, TypedDict

# What every manifest has, and how the records were imported; `required` files must stay as they are, all without it.
Manifest = TypedDict(
    "Manifest",
    {
        "kind": str,
        "files": dict[str, str],  # name → SHA-256
        "required": NotRequired[list[str]],
        "import": NotRequired[dict[str, Any]],
    },
)


class CauseRecalibration(TypedDict):
    """Level, stretch and trend of a cause, and the intercepts that were folded into the head."""

    level: float
    stretch: float
    trend: float
    subjects_with_event: int
    intercept: list[float]


class Fitted(TypedDict, total=False):
    """What training noted of a network: of the run's, or of a member of its ensemble."""

    recalibration: dict[str, CauseRecalibration]


class Found(TypedDict):
    """How many codes were found in another vocabulary in one way, and their share of the records' codes."""

    codes: int
    share: float


class Origin(TypedDict, total=False):
    """A model that a run started from, and what that one started from in its turn."""

    folder: str
    prepared: str
    data_path: str
    subjects: dict[str, str]  # split → a digest
    objectives: dict[str, float]
    excluded_targets: dict[str, list[str]] | None
    vocabulary: str  # a digest
    transfer: dict[str, str]  # settings
    overlap: dict[str, Found]
    init: "Origin"


class RunManifest(Manifest, Fitted):
    """Of a run; a shared model lacks what would tell of its place."""

    prepared: str
    excluded: list[str]
    vocabulary: str  # a digest
    fingerprint: str
    simulated: NotRequired[bool]
    parameters: NotRequired[int]
    seconds: NotRequired[dict[str, float]]  # of each stage
    members: NotRequired[list[Fitted]]
    init: NotRequired[Origin]
    loss: NotRequired[dict[str, str]]  # name and hash of the source, where one's own was declared
    trained: NotRequired[str]  # `outside`: with one's own loop
    update: NotRequired[dict[str, Any]]  # what `ehrseq update` chose: causes beside its own keys
