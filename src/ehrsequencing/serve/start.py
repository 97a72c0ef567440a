"""Listen: the application on an address of this machine, with uvicorn."""

import gc
import socket
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ehrsequencing.core.errors import EhrseqError

if TYPE_CHECKING:
    import uvicorn

    from ehrsequencing.prediction.run import Run
    from ehrsequencing.serve.access import Access
    from ehrsequencing.serve.explorer_page import LivePage
    from ehrsequencing.serve.limits import Limits
    from ehrsequencing.serve.predictor import Predictor

NEEDED = ("fastapi", "uvicorn", "prometheus_client")
_DRAIN = 5  # seconds that open requests have to end when the server stops


def require_packages() -> None:
    """Refuse to start where a package of the extra is missing.

    Raises:
        EhrseqError: One is missing.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        fix = 'install it with pip install "ehrsequencing[serve]"'
        raise EhrseqError(f"needs {', '.join(missing)}", where="ehrseq serve", fix=fix)


def listener(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 is any free one.

    Raises:
        EhrseqError: The address is not one of this machine, or something listens there.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        found = socket.socket(family, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(2048)  # from now on clients wait instead of being refused
    except (OSError, OverflowError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or "no such address"
        raise EhrseqError(
            f"cannot listen: {why}", where=f"{host}, port {port}", fix="name another --port"
        ) from error
    return found


def server(
    predictor: "Predictor", access: "Access", *, limits: "Limits", live: "LivePage | None" = None
) -> "uvicorn.Server":
    """A server that is ready to run on a listening socket.

    It writes no access log, and trusts no header of a proxy.
    """
    import uvicorn

    from ehrsequencing.serve.app import create_app

    app = create_app(predictor, access, live)
    config = uvicorn.Config(
        app,
        access_log=False,
        log_level="warning",
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=_DRAIN,
        limit_concurrency=4 * limits.waiting,
        h11_max_incomplete_event_size=16 * 2**10,
        ws="none",
        lifespan="on",
    )
    return uvicorn.Server(config)


def serve(
    run_folder: Path,
    data: Path | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    names: tuple[str, ...] = (),
    recalibrated: bool = False,
    limits: "Limits | None" = None,
    live: "Callable[[Run], LivePage | None]" = lambda _: None,
    on_start: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve a run until the process is interrupted.

    Args:
        run_folder: A trained run.
        data: A MEDS data set, for the parents of its codes.
        host: The address to listen on; beyond loopback a token is needed.
        port: 0: any free one.
        token: What clients must know.
        names: Further host names under which clients address the server.
        recalibrated: Whether to use what `ehrseq evaluate --recalibrate` fitted.
        limits: Of one request.
        live: Makes the explorer's page, where it is served.
        on_start: Called with the URL once the server listens.

    Raises:
        EhrseqError: Run, data or address cannot be used, or the extra `serve` is not installed.
    """
    require_packages()
    from ehrsequencing.prediction.run import Run
    from ehrsequencing.serve.access import access
    from ehrsequencing.serve.limits import Limits
    from ehrsequencing.serve.predictor import Predictor

    limits = limits or Limits()
    allowed = access(host, token=token, names=names)
    run = Run(run_folder)
    predictor = Predictor(run, data, recalibrated=recalibrated, limits=limits)
    with listener(host, port) as found:
        running = server(predictor, allowed, limits=limits, live=live(run))
        shown = f"[{host}]" if ":" in host else host
        gc.collect()
        gc.freeze()  # what is loaded by now stays: later collections need not look at it, and pause no request
        on_start(f"http://{shown}:{found.getsockname()[1]}")
        running.run(sockets=[found])
