"""No step waits for a device: shown on `meta` tensors, which hold no numbers, and on a GPU where there is one."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from helpers.models import MODELS, make_model
from helpers.no_wait import Waits, check_no_wait, nobody_waits, step
from helpers.strategies import pack, sample_records

SAMPLE = sample_records(lengths=(7, 0, 1, 8, 3))

QUICK = [("query", "horizon"), ("flat", "horizon"), ("table", "horizon"), ("query", "visit")]
EVERY = [(kind, "horizon") for kind in MODELS]


@pytest.mark.parametrize(
    ("kind", "head"),
    [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in EVERY if case not in QUICK)],
)
def test_no_step_waits(kind: str, head: str, monkeypatch: pytest.MonkeyPatch) -> None:
    history = {"history_dropout": 0.1}
    model = make_model(**MODELS[kind], head=head, dropout=0.1, code_dropout=0.1, **history)
    check_no_wait(model, pack(SAMPLE, visit_labels=head == "visit", dtype=torch.float32), monkeypatch)


def waits_backward(x: Tensor) -> None:
    x.register_hook(lambda gradient: gradient + torch.ones(7).to("meta"))
    x.sum().backward()


WAITING: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool((x > 0).any()),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "masked assignment": lambda x: x.index_put((x > 0,), x[:1]),
    "repeats": lambda x: x.repeat_interleave(x.long()),
    "a new tensor": lambda x: torch.tensor([1.0, 2.0], device=x.device),
    "a blocking copy": lambda x: torch.ones(3).to(x.device),
    "a blocking assignment": lambda x: x.copy_(torch.ones(7)),
    "in a backward": lambda x: waits_backward(x.clone().requires_grad_()),
}


@pytest.mark.parametrize("name", WAITING)
def test_what_waits_is_seen(name: str) -> None:
    x = torch.ones(7, device="meta")
    with pytest.raises((Waits, RuntimeError)), nobody_waits():  # RuntimeError: a meta tensor refuses by itself
        WAITING[name](x)


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and EHRSEQ_TEST_GPU=1")


@needs_gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["query", "flat", "table", "flat table"])
def test_no_step_waits_for_a_gpu(kind: str, precision: torch.dtype) -> None:
    model = make_model(**MODELS[kind], dim=32).float().cuda()
    host = pack(SAMPLE, dtype=torch.float32).pin_memory()
    with torch.autocast("cuda", precision, enabled=precision == torch.bfloat16):
        step(model, host.to("cuda", non_blocking=True))
        try:
            torch.cuda.set_sync_debug_mode("error")
            step(model, host.to("cuda", non_blocking=True))
        finally:
            torch.cuda.set_sync_debug_mode("default")
