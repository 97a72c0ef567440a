"""What the bench of Delphi's own model gives it: its tokens, and nothing after a prediction time."""

from pathlib import Path

import numpy as np
import torch
from hypothesis import given, strategies as st
from torch import Tensor, nn

from helpers.bench import load_bench

delphi = load_bench("delphi")


def tokens(*listed: tuple[int, int, int]) -> object:
    """Of (subject, age in days, token)."""
    table = np.array(sorted(listed), dtype=np.int64).reshape(-1, 3)
    return delphi.Tokens(
        table[:, 0], table[:, 1], table[:, 2], {"GENDER//F": 2, "ICD10//A": 13, "MEDS_DEATH": 14}, {}, {1: "train"}
    )


class Echo(nn.Module):
    """Answers with the token, its age and how many tokens came before it."""

    def forward(self, token: Tensor, age: Tensor) -> tuple[Tensor]:
        return (torch.stack([token.float(), age, (token > 0).cumsum(1).float()], dim=-1),)


@given(st.lists(st.integers(1, 30_000), unique=True, min_size=1, max_size=6), st.data())
def test_a_row_is_answered_after_what_was_known(days: list[int], data: st.DataObject) -> None:
    own = tokens((1, 0, 2), *((1, day, 13) for day in days), (2, 0, 2))
    landmarks = data.draw(st.lists(st.integers(1, 30_000), max_size=4))
    asked = np.sort(np.array([*days, *landmarks], dtype=float))
    found = delphi.log_rates(Echo(), own, subject=np.ones(len(asked)), days=asked, wanted=np.arange(3))
    regular = (np.arange(0, delphi.LAST_NO_EVENT_DAYS, delphi.NO_EVENT_DAYS) + 1).tolist()
    every = {0.0, *days, *asked.tolist(), *regular}
    for day, (token, age, count) in zip(asked.tolist(), found.tolist(), strict=True):
        assert age == day
        assert token == (13 if day in days else delphi.NO_EVENT)
        assert count == sum(one <= day for one in every)


def test_files_are_of_one_split_and_tokens_start_at_zero(tmp_path: Path) -> None:
    own = tokens((1, 0, 2), (1, 400, 13), (1, 900, 14))
    own.write(tmp_path / "train.bin", "train")  # type: ignore[attr-defined]
    own.write(tmp_path / "val.bin", "tuning")  # type: ignore[attr-defined]
    assert np.fromfile(tmp_path / "train.bin", np.uint32).reshape(-1, 3).tolist() == [
        [1, 0, 1],
        [1, 400, 12],
        [1, 900, 13],
    ]
    assert (tmp_path / "val.bin").stat().st_size == 0
