"""A busy world for tests of single mechanisms."""

from typing import Any

import numpy as np

from ehrsequencing.simulate import SimulationConfig
from ehrsequencing.simulate.process import Process
from ehrsequencing.simulate.records import Courses, simulate_courses

_BUSY = {
    "visits_per_year": 2.8,
    "outcome_per_year": 0.027,
    "pair_visit_share": 0.5,
    "pair_effect": 1.0,
    "pair_memory": 0.8,
    "order_effect": 0.8,
    "lab_effect": 0.3,
    "background_codes": 500,
    "background_per_visit": 4.0,
}


def busy_world(**knobs: Any) -> SimulationConfig:
    """More visits, weaker pairs and more background than the default's, with these knobs turned."""
    return SimulationConfig(**{**_BUSY, **knobs})


def courses_of(subjects: int, seed: int = 7, **knobs: float) -> tuple[Process, Courses]:
    process = Process(busy_world(**knobs))
    return process, simulate_courses(process, np.random.default_rng(seed), subjects)


EFFECTS = ("age", "death_age", "sex", "death_sex", "chronic", "pair", "gap", "order", "decay", "lab")


NO_EFFECTS = {f"{name}_effect": 0.0 for name in EFFECTS}
