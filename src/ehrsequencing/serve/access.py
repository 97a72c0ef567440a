"""Who may ask: hosts, origins and the token."""

import hashlib
import hmac
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

from ehrsequencing.core.errors import EhrseqError

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
COOKIE = "ehrseq_token"
LEAST_TOKEN = 16  # characters


@dataclass(frozen=True)
class Access:
    """Names under which the server may be addressed, and its token.

    A page of another site that a browser shows could reach this server by a name that it makes point here (DNS
    rebinding), or by a form. So the Host must be one that we know, and an Origin must be the same host.

    Attributes:
        hosts: Names without ports, lower case; IPv6 in brackets.
        token: What clients must know; None where anybody on this machine may ask.
    """

    hosts: tuple[str, ...] = LOOPBACK
    token: str | None = None

    def knows_host(self, host: str) -> bool:
        """Whether the value of a Host header is a name of this server, whatever the port."""
        return _without_port(host.lower()) in self.hosts

    def knows_origin(self, origin: str) -> bool:
        """Whether a page of this origin may ask: one that this server itself has sent."""
        scheme, _, host = origin.lower().partition("://")
        return scheme in ("http", "https") and "/" not in host and self.knows_host(host)

    def knows_token(self, given: str) -> bool:
        """Whether the token is right; takes the same time wherever the two differ."""
        digests = [
            hashlib.sha256(text.encode("utf-8", "replace")).digest()
            for text in (given, self.token or "")
        ]
        return self.token is None or hmac.compare_digest(*digests)


def access(host: str, *, token: str | None, names: Iterable[str] = ()) -> Access:
    """The access to a server that listens on an address.

    Args:
        host: The address.
        token: What clients must know; None: anybody.
        names: Further names under which clients address it, as behind a proxy.

    Raises:
        EhrseqError: It would listen beyond this machine without a token, or the token is short.
    """
    token = token or None
    if token is not None and len(token) < LEAST_TOKEN:
        fix = 'use a long random one: python -c "import secrets; print(secrets.token_urlsafe())"'
        raise EhrseqError(f"is shorter than {LEAST_TOKEN} characters", where="--token", fix=fix)
    if token is None and not is_loopback(host):
        fix = "set EHRSEQ_TOKEN (or --token), or listen on 127.0.0.1 behind a proxy; see docs/serve.md"
        raise EhrseqError(
            "would let anybody in the network ask, without a token", where=f"--host {host}", fix=fix
        )
    own = f"[{host}]" if ":" in host else host
    given = (_without_port(name.strip().lower()) for name in names)
    return Access(tuple(dict.fromkeys((*LOOPBACK, own.lower(), *given))), token)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address; a name other than localhost may lead anywhere."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _without_port(host: str) -> str:
    """A host without its port.

    >>> _without_port("[::1]:80"), _without_port("ehr.example:443"), _without_port("localhost")
    ('[::1]', 'ehr.example', 'localhost')
    """
    if host.startswith("["):
        return host[: host.find("]") + 1]
    return host.partition(":")[0]
