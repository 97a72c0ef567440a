"""Reads the original records behind a prepared set: fits the vocabulary again, keeps the events of sampled subjects."""

from copy import copy
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ehrsequencing.core.arrays import Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.prediction.predict import Encoder
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.codes import read_parents
from ehrsequencing.records.events import STATIC, Events
from ehrsequencing.records.labels import IndexTimes
from ehrsequencing.records.meds import LateRows, MedsReader
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.records.visits import make_record
from ehrsequencing.records.vocabulary_fit import VocabularyFit


@dataclass(frozen=True)
class Source:
    """The MEDS records that a set was prepared from."""

    encoder: Encoder  # encodes records as the run's training data was
    fit: VocabularyFit  # codes and values of the training subjects of the prepared set
    records: dict[int, Events]  # events of each sampled subject, by id
    dataset_end_us: int  # last timestamp, or the date of extraction

    @classmethod
    def read(cls, run: Run, prepared: Prepared, folder: Path, *, wanted: Ints) -> "Source":
        """One pass over the shards.

        Raises:
            EhrseqError: The records cannot be read, or are not those that were prepared.
        """
        study, manifest = prepared.study, prepared.manifest
        reader = MedsReader(folder, study.data, study.visits)
        late = manifest.get("late_rows")
        reader.late = LateRows(**late) if late else None  # left out as when the set was prepared
        parents = read_parents(folder)
        encoder = Encoder(run, parents)
        fit = VocabularyFit(
            study.vocabulary, study.values, excluded=encoder.excluded, parents=parents
        )
        training = prepared.timelines("train").subject_id
        records: dict[int, Events] = {}
        subjects = 0
        end_us = STATIC
        for events in reader:
            ids, row = np.unique(events.subject_id, return_inverse=True)
            fit.update(events, row, np.isin(ids, training)[row])
            subjects += len(ids)
            end_us = max(end_us, int(events.time_us.max(initial=STATIC)))
            records |= _split(events.take(np.isin(events.subject_id, wanted)))
        if reader.declared_us is not None:
            end_us = reader.declared_us
        if (
            subjects != manifest["subjects"]
            or end_us != manifest["dataset_end_us"]
            or len(records) < len(wanted)
        ):
            raise EhrseqError(
                "these are not the records that were prepared",
                where=str(folder),
                fix="name the records that were prepared with --data",
            )
        return cls(encoder, fit, records, end_us)

    def encode(self, parts: list[Events], ids: Ints, *, end_us: int, labelled: bool) -> TaskRecords:
        """Records of one subject each, encoded as `prepare` (with labels) and predictions in use encode records.

        Args:
            parts: The records; they become subjects 0, 1, 2 …
            ids: (n,) whose they are, for a task whose index times stand in a file.
            end_us: End of the data.
            labelled: Whether follow-up ends and outcomes are looked for.
        """
        run, builder = self.encoder.run, copy(self.encoder.builder)
        record = make_record(join(parts), excluded=self.encoder.excluded, settings=run.study.visits)
        if builder.index_times is not None:
            builder.index_times = IndexTimes(*builder.index_times.of(ids))
        cohort = builder.build(record, dataset_end_us=end_us, labelled=labelled)
        return self.encoder.encode(record, cohort.rows)


def _split(events: Events) -> dict[int, Events]:
    """Events sorted by subject, by the subject's id."""
    ids, first = np.unique(events.subject_id, return_index=True)
    bounds = np.r_[first, len(events)].tolist()
    return {
        int(who): events.take(np.arange(low, high))
        for who, low, high in zip(ids.tolist(), bounds, bounds[1:], strict=False)
    }


def join(parts: list[Events]) -> Events:
    """Records under new ids 0, 1, 2 … in one; they may come from shards that number their codes differently."""
    number: dict[str, int] = {}
    codes = [
        np.array(
            [number.setdefault(code, len(number)) for code in part.codes] or [0], dtype=np.int32
        )[part.code]
        for part in parts
    ]
    encounters = [part.encounter for part in parts if part.encounter is not None]
    return Events(
        subject_id=np.repeat(np.arange(len(parts)), [len(part) for part in parts]),
        time_us=np.concatenate([part.time_us for part in parts]),
        code=np.concatenate(codes),
        codes=tuple(number),
        value=np.concatenate([part.value for part in parts]),
        encounter=np.concatenate(encounters) if encounters else None,
        beyond=np.flatnonzero([bool(np.isin(part.subject_id[:1], part.beyond)) for part in parts]),
    )
