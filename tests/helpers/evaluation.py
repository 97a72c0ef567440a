"""x"""

from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords


def split(prepared: Prepared, name: str) -> TaskRecords:
    return prepared.records("simulated", name)
