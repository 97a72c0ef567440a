"""Which network interface the processes of several machines talk through.

Gloo takes the interface of the address that the machine's own name has. On Debian and Ubuntu that is 127.0.1.1, where
no other machine can reach it. So each process takes the interface that leads to the others.
"""

import socket
import struct
import sys
from collections.abc import Mapping

from torch.distributed import Store  # type: ignore[attr-defined]

_ASK_ADDRESS = 0x8915  # SIOCGIFADDR of Linux


def interface(
    store: Store, environment: Mapping[str, str], *, rank: int, local_rank: int
) -> str | None:
    """The name for GLOO_SOCKET_IFNAME; None where Gloo may choose: on one machine, or where nothing was found.

    Processes of other machines look for the way to machine 0, and tell their own address there. Machine 0 knows its
    own address by its name only, and looks for the way to the first process of another machine.

    Args:
        store: Of all processes.
        environment: As torchrun sets it.
        rank: Of this process.
        local_rank: On its machine.
    """
    here, everywhere = environment.get("LOCAL_WORLD_SIZE", ""), environment["WORLD_SIZE"]
    if not here.isdigit() or here == everywhere or sys.platform != "linux":
        return None
    if rank == local_rank:  # on machine 0
        there = store.get(f"address-{int(here)}").decode()
        return name_of(own_address(there))
    mine = own_address(environment["MASTER_ADDR"])
    store.set(f"address-{rank}", mine)
    return name_of(mine)


def own_address(other: str) -> str:
    """This machine's IPv4 address on the way to another one, or nothing. Nothing is sent.

    >>> own_address("127.0.0.1"), own_address("")
    ('127.0.0.1', '')
    """
    if not other:
        return ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        try:
            way.connect((other, 9))  # of a datagram socket: it chooses the route alone
        except OSError:
            return ""
        return str(way.getsockname()[0])


def name_of(address: str) -> str | None:
    """Name of the interface that has an IPv4 address; None if none has.

    >>> name_of("192.0.2.1") is None
    True
    """
    if not address or sys.platform != "linux":
        return None
    if address.startswith("127."):
        return "lo"
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(one.fileno(), _ASK_ADDRESS, struct.pack("256s", name.encode()))
            except OSError:  # it has no address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None
