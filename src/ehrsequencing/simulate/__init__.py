"""MEDS data with known true hazards: records, the truth behind them, and a task that asks for it.

Modules, in reading order: `settings` (the knobs), `lives` (the state, and what the record hides of it), `process` (the
mechanisms), `courses` (who visits when, and when something strikes), `codes` and `records` (the rows that a reader
sees), `truth` (what the best possible model could say) and `dataset` (the files).
"""

from ehrsequencing.simulate.dataset import simulate
from ehrsequencing.simulate.process import SimulationConfig

__all__ = ["SimulationConfig", "simulate"]
