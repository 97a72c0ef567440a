"""Which interface the processes of several machines talk through."""

import socket
import sys
from typing import Any

import pytest
from ehrsequencing.training.network import interface, name_of, own_address

from ehrsequencing.training import network

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")
TWO = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}


class Told(dict[str, bytes]):
    """A store of one process."""

    def set(self, name: str, value: str) -> None:
        self[name] = value.encode()


def asked(store: Any, environment: dict[str, str], rank: int, local_rank: int) -> str | None:
    return interface(store, environment, rank=rank, local_rank=local_rank)


def test_one_machine_leaves_the_choice_to_gloo() -> None:
    assert asked({}, {**TWO, "LOCAL_WORLD_SIZE": "4"}, 0, 0) is None
    assert asked({}, {"WORLD_SIZE": "4"}, 0, 0) is None  # who started it does not say how many are here


def test_machine_0_looks_for_the_way_to_the_first_process_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    ways = {"node0": "10.0.0.5", "10.0.0.5": "10.0.0.4"}
    monkeypatch.setattr(network, "own_address", lambda other: ways.get(other, ""))
    monkeypatch.setattr(network, "name_of", lambda address: f"to {address}")
    store, environment = Told(), {**TWO, "MASTER_ADDR": "node0"}
    assert [asked(store, environment, rank, rank - 2) for rank in (2, 3)] == ["to 10.0.0.5"] * 2
    assert store["address-2"] == b"10.0.0.5"
    assert [asked(store, environment, rank, rank) for rank in (0, 1)] == ["to 10.0.0.4"] * 2


def test_an_address_that_leads_nowhere_leaves_the_choice_to_gloo() -> None:
    store, environment = Told(), {**TWO, "MASTER_ADDR": "no such host.invalid"}
    assert asked(store, environment, 2, 0) is None
    assert asked(store, environment, 0, 0) is None


def test_names_of_interfaces() -> None:
    assert name_of(own_address("127.0.0.1")) == "lo"
    assert name_of("127.0.1.1") == "lo"  # Debian's address of a machine's own name
    assert name_of("192.0.2.1") is None
    own = own_address("192.0.2.1")  # no packet is sent; where there is no way, nothing is found
    assert not own or name_of(own) in {name for _, name in socket.if_nameindex()}
