"""A busy world for tests of single mechanisms: more visits, weaker pairs and more background than the default's."""

from typing import Any

from ehrsequencing.simulate import SimulationConfig

_BUSY = {
    "visits_per_year": 2.8, "outcome_per_year": 0.027, "pair_visit_share": 0.5, "pair_effect": 1.0, "pair_memory": 0.8,
    "order_effect": 0.8, "lab_effect": 0.3, "background_codes": 500, "background_per_visit": 4.0,
}  # fmt: skip


def busy_world(**knobs: Any) -> SimulationConfig:
    """The busy world, with these knobs turned."""
    return SimulationConfig(**{**_BUSY, **knobs})
