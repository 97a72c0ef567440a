"""Answers by several processes: who answers for which subjects, and how the answers come together in order.

A process answers for neighbours in a shard, and a part begins where a batch of one process would begin. So every batch
is one that a single process makes, and every answer is the same to the last bit, given as many threads.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.core.arrays import Ints
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.training.processes import Processes, Sending

PIECES_EACH = 4  # pieces of work for each process, so that they end at about the same time
# answers that belong together; all blocks of a command have as many arrays
Block = tuple[NDArray[Any], ...]


def parts_of(sizes: Sequence[int], count: int) -> list[int]:
    """Into how many parts to divide each shard, so that there is enough to do for each of some processes.

    A process reads each shard of which it has a part, so there are no more parts than processes.

    Args:
        sizes: Rows of each shard.
        count: How many processes.

    >>> parts_of([700, 150, 150], 2), parts_of([100] * 50, 2), parts_of([0], 3)
    ([2, 2, 2], [1, ...], [1])
    """
    most = max(sum(sizes) // (PIECES_EACH * count), 1)
    return [min(max(-(-size // most), 1), count) for size in sizes]


def bounds_of(starts: Ints, cost: Ints, subjects: int, parts: int) -> list[int]:
    """Where the parts of a shard begin and the last one ends: at batches, with about equal costs.

    Args:
        starts: (b,) the first subject of each batch.
        cost: (b,) of each batch.
        subjects: How many the shard has.
        parts: How many parts; some are empty where there are fewer batches.

    >>> bounds_of(np.array([0, 10, 30]), np.array([5, 5, 10]), 40, 2)
    [0, 30, 40]
    """
    done = np.cumsum(cost, dtype=np.float64)
    part = (
        np.minimum((done - cost / 2) * parts // max(float(done[-1]), 1.0), parts - 1)
        if len(done)
        else done
    )
    first = np.searchsorted(part, np.arange(1, parts))
    return [0, *np.append(starts, subjects)[first].tolist(), subjects]


def part_of(
    records: TaskRecords, batches: tuple[Ints, Ints], parts: int, number: int
) -> TaskRecords:
    """One part of a shard; `batches` are the arguments `starts` and `cost` of `bounds_of`."""
    if parts == 1:
        return records
    bounds = bounds_of(*batches, len(records.timelines), parts)
    return records.take(slice(bounds[number], bounds[number + 1]))


def in_order(
    processes: Processes,
    sizes: Sequence[int],
    *,
    read: Callable[[int], tuple[TaskRecords, Ints]],
    batches: Callable[[TaskRecords], tuple[Ints, Ints]],
    answer: Callable[[TaskRecords], Iterable[Block]],
) -> Iterator[tuple[Ints, Iterable[Block]]]:
    """Answers for all shards. All processes must call it and take everything; process 0 alone gets something.

    A process holds the answers of two pieces of work at most: of the next one, and of one that process 0 does not have
    yet. Nothing is written to disk.

    Args:
        processes: Who shares the work.
        sizes: Rows of each shard.
        read: Number of a shard → its records, and (c,) counts that belong to the whole shard.
        batches: Records → first subject and cost of each batch (`answers.batches`, `RunAnswers.batches`).
        answer: Records → their answers.

    Yields:
        For each shard in order its counts, and the blocks of its parts in order.

    Raises:
        LostContact: A process has ended.
    """
    if not processes.several:
        for shard in range(len(sizes)):
            records, counts = read(shard)
            yield counts, answer(records)
        return
    number, sending, held = 0, Sending([]), dict[int, tuple[TaskRecords, Ints]]()
    for shard, parts in enumerate(parts_of(sizes, processes.count)):
        told, blocks = np.zeros(0, np.int64), list[Block]()
        for part in range(parts):
            owner, number = number % processes.count, number + 1
            if owner == processes.rank:
                if shard not in held:
                    held.clear()
                    held[shard] = read(shard)
                records, counts = held[shard]
                own = part_of(records, batches(records), parts, part)
                made = list(answer(own)) if len(own) or not part else []
                if not processes.is_first:
                    sending.wait()
                    sending = processes.send(
                        [counts, np.array([len(made)]), *(array for one in made for array in one)]
                    )
            elif processes.is_first:
                counts, count, *arrays = processes.receive(owner)
                width = len(arrays) // max(int(count[0]), 1)
                made = [tuple(arrays[k : k + width]) for k in range(0, len(arrays), max(width, 1))]
            else:
                continue
            told, blocks = counts, [*blocks, *made]
        if processes.is_first:
            yield told, blocks
    sending.wait()
