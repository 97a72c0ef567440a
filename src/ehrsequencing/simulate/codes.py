"""The codes of a simulation: one numbered list, in which each kind has its place, and the ontology above them."""

from collections.abc import Sequence

from ehrsequencing.simulate.process import SimulationConfig

BIRTH, DEATH_CODE, OUTCOME_CODE = "MEDS_BIRTH", "MEDS_DEATH", "DX//OUTCOME"
ENROLMENT, END_OF_FOLLOW_UP = "ENROLLMENT", "END_OF_FOLLOWUP"
ADMISSION, DISCHARGE = "STAY//ADMISSION", "STAY//DISCHARGE"
FEMALE, MALE, ACUTE, MARKER, OTHER_LAB = (
    "SEX//F",
    "SEX//M",
    "DX//FLARE",
    "LAB//MARKER",
    "LAB//OTHER",
)
EMPTY_VISIT = "VISIT//EMPTY"
_ROOT = "GROUP//"

# Rows of one instant stand in this order.
_SINGLE = {
    BIRTH: ("Birth", None),
    OUTCOME_CODE: ("The outcome", "EVENT"),
    ENROLMENT: ("Enrolment, at the end of a visit", None),
    ADMISSION: ("A stay of several days begins", "STAY"),
    DISCHARGE: ("A stay of several days ends", "STAY"),
    DEATH_CODE: ("Death", "EVENT"),
    END_OF_FOLLOW_UP: ("End of follow-up: the study's end or drop-out", None),
    FEMALE: ("Female", "SEX"),
    MALE: ("Male", "SEX"),
    ACUTE: ("Acute event: raises the hazard, by half as much after every half-life", "EFFECT"),
    MARKER: ("Laboratory marker: its last value sets the hazard", "LAB"),
    OTHER_LAB: ("Laboratory value without meaning", "LAB"),
}
# What codes are called where `words` is set, in the order of the list; those beyond keep their numbers.
WORDS = {
    "DX": (
        "Angina|Atrial fibrillation|Aortic stenosis|Heart failure|Hypertension|Type 2 diabetes|Chronic kidney disease|"
        "COPD|Obesity|Atherosclerosis|Hyperlipidaemia|Sleep apnoea|Asthma|Anaemia|Arthrosis|Back pain|Bronchitis|"
        "Cataract|Cellulitis|Constipation|Cystitis|Depression|Dermatitis|Diverticulosis|Dizziness|Eczema|Fatigue|"
        "Fracture of the wrist|Gastritis|Glaucoma|Gout|Haemorrhoids|Hay fever|Headache|Hearing loss|Hernia|"
        "Hypothyroidism|Influenza|Insomnia|Migraine|Osteoporosis|Pneumonia|Psoriasis|Reflux|Sinusitis|Tonsillitis"
    ),
    "RX": (
        "Furosemide|Warfarin|Bisoprolol|Allopurinol|Amoxicillin|Aspirin|Budesonide|Calcium|Cetirizine|Codeine|"
        "Diclofenac|Doxycycline|Folic acid|Gabapentin|Ibuprofen|Iron|Lactulose|Levothyroxine|Loratadine|Macrogol|"
        "Metoclopramide|Mirtazapine|Omeprazole|Paracetamol|Pregabalin|Sertraline|Tamsulosin|Tramadol|Vitamin D|"
        "Zopiclone"
    ),
    "PROC": (
        "Echocardiography|Stress test|Coronary angiography|Audiometry|Biopsy of the skin|Blood count|Bone density|"
        "Chest X-ray|Colonoscopy|CT of the abdomen|Dental check|Electrocardiogram|Eye examination|Gastroscopy|"
        "Hearing aid|Immunisation|Joint injection|Mammography|MRI of the spine|Physiotherapy|Sonography|Spirometry|"
        "Suture|Urinalysis|Vaccination"
    ),
    "LAB": "Creatinine|C-reactive protein",
}
_BACKGROUND_KINDS = ("DX", "RX", "PROC")
_GROUPS = {
    "EVENT": ("What strikes", None),
    "STAY": ("Stays of several days", None),
    "SEX": ("Sex", None),
    "LAB": ("Laboratory values", None),
    "EFFECT": ("Codes that move the outcome's hazard", None),
    "PAIR": ("Pairs, matched or not", "EFFECT"),
    "PAIR_A": ("First halves of pairs", "PAIR"),
    "PAIR_B": ("Second halves of pairs", "PAIR"),
    "ORDER": ("Codes whose order counts", "EFFECT"),
    "CHRONIC": ("Chronic conditions", "EFFECT"),
    "BACKGROUND": ("Background: without meaning", None),
}


class CodeTable:
    """Names, descriptions and parents by number, the number of each single code, and the first of each family."""

    def __init__(self, config: SimulationConfig) -> None:
        self.names: list[str] = []
        self.descriptions: list[str] = []
        self.parents: list[list[str]] = []
        self.single = {
            name: self._add({name: text}, [group]) for name, (text, group) in _SINGLE.items()
        }
        pairs, conditions, background = (
            config.pairs,
            config.chronic_conditions,
            config.background_codes,
        )
        self.pair_a = self._add(
            {f"DX//A{k:02d}": f"Pair {k}: first half" for k in range(pairs)}, ["PAIR_A"]
        )
        self.pair_b = self._add(
            {f"RX//B{k:02d}": f"Pair {k}: second half" for k in range(pairs)}, ["PAIR_B"]
        )
        self.order = self._add(
            {
                f"PROC//ORDER_{here}": f"Raises the hazard after {last}, lowers it after {after}"
                for here, last, after in ("ACB", "BAC", "CBA")
            },
            ["ORDER"],
        )
        self.chronic = self._add(
            {f"DX//CHRONIC{c:02d}": f"Chronic condition {c}" for c in range(conditions)},
            ["CHRONIC"],
        )
        decades = [f"N{b // 10:03d}x" for b in range(background)]
        self.background = self._add(
            {
                f"{_BACKGROUND_KINDS[b % 3]}//N{b:04d}": "Background: without meaning"
                for b in range(background)
            },
            decades,
        )
        if (
            background == 0 or config.background_per_visit < 1
        ):  # otherwise every visit has a background code
            self.single[EMPTY_VISIT] = self._add(
                {EMPTY_VISIT: "A visit at which nothing else is written"}, [None]
            )
        if config.words:  # all codes but the outcome's; the description tells which code it was
            words = {kind: iter(text.split("|")) for kind, text in WORDS.items()}
            for number, name in enumerate(self.names):
                kind = name.partition("//")[0]
                word = None if name == OUTCOME_CODE else next(words.get(kind, iter(())), None)
                if word is not None:
                    self.names[number] = f"{kind}//{word}"
                    meaning = self.descriptions[number]
                    text = f"{word}, {meaning[0].lower()}{meaning[1:]} ({name})"
                    self.descriptions[number] = text
        self._groups = {
            **_GROUPS,
            **{name: ("Ten background codes", "BACKGROUND") for name in decades},
        }

    def _add(self, codes: dict[str, str], groups: Sequence[str | None]) -> int:
        """Append codes, each in its group or all in one; answers the number of the first."""
        first = len(self.names)
        self.names += codes.keys()
        self.descriptions += codes.values()
        groups = groups if len(groups) == len(codes) else [groups[0]] * len(codes)
        self.parents += [[_ROOT + group] if group else [] for group in groups]
        return first

    def ontology(self) -> dict[str, list[object]]:
        """Columns of `codes.parquet`: every code and every group, with its parents."""
        tops = [[_ROOT + parent] if parent else [] for _, parent in self._groups.values()]
        return {
            "code": [*self.names, *(_ROOT + name for name in self._groups)],
            "description": [*self.descriptions, *(text for text, _ in self._groups.values())],
            "parent_codes": [parents or None for parents in (*self.parents, *tops)],
        }
