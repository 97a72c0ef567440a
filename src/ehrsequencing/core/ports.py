"""Whether anything answers at a port."""

import socket

_WAIT_SECONDS = 20


def check_answer(place: str) -> None:
    """Connect to HOST:PORT and leave: what connects for real often tries for a minute and more.

    Raises:
        ConnectionError: Nothing takes a connection within 20 seconds, or `place` is no such address.
    """
    host, _, port = place.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_WAIT_SECONDS).close()
    except (OSError, ValueError, OverflowError) as error:
        raise ConnectionError("nothing answers") from error
