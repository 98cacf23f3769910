"""``--metrics-port``: serves metrics for Prometheus over HTTP, from the ranks' flight recorders.

Threads of the launcher answer. Agents send the recorders over the job's own connections.
"""

import contextlib
import threading
from typing import Any, Callable, Iterator, List, Optional, Tuple

from hvdlite.launch.job import LaunchError
from hvdlite.launch.output import tell

_PATIENCE = 5.0  # seconds in which a client must send its request
_MOST_CLIENTS = 64  # most connections; a new client then replaces the oldest connection
_PATHS = ("/", "/metrics")


def address(text: str) -> Tuple[str, int]:
    """Return the address and port to listen on. Only this host reaches the default address.

    :raises ValueError: the text is not PORT or ADDRESS:PORT.

    >>> address("9400"), address("0.0.0.0:9400")
    (('127.0.0.1', 9400), ('0.0.0.0', 9400))
    """
    host, _, port = text.rpartition(":")
    if not (port.isdigit() and int(port) < 1 << 16):
        raise ValueError(f"--metrics-port {text}: expected PORT or ADDRESS:PORT")
    return host or "127.0.0.1", int(port)


@contextlib.contextmanager
def serve(where: Optional[str], read: Callable[[], str]) -> Iterator[None]:
    """Serve what ``read`` returns, and print the address to stderr.

    :param where: as ``--metrics-port``; None: nothing listens.
    :raises LaunchError: nothing can listen there.
    """
    if where is None:
        yield
        return
    try:
        server = _server(address(where), read)
    except OSError as error:
        raise LaunchError(f"--metrics-port {where}: {error.strerror}: use another port") from error
    threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
    try:
        at, port = address(where)[0], server.server_port
        tell(f"hvdliterun: metrics: http://{at}:{port}/metrics")
        yield
    finally:
        server.shutdown()
        server.server_close()


def _server(place: Tuple[str, int], read: Callable[[], str]):
    """Return a server that listens at this place and answers with what ``read`` returns."""
    # Imported here, because it takes a fifth of the launcher's import time. Each client has a
    # thread, so a slow client does not delay the others.
    import socket
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Server(ThreadingHTTPServer):
        # limited to _MOST_CLIENTS, because the launcher itself needs threads and descriptors
        clients: List[Any] = []

        def process_request(self, request, client_address) -> None:
            self.clients.append(request)
            if len(self.clients) > _MOST_CLIENTS:
                with contextlib.suppress(OSError):  # the client has gone
                    self.clients.pop(0).shutdown(socket.SHUT_RDWR)
            super().process_request(request, client_address)

        def shutdown_request(self, request) -> None:
            with contextlib.suppress(ValueError):  # a newer client has closed the connection
                self.clients.remove(request)
            super().shutdown_request(request)

    class Handler(BaseHTTPRequestHandler):
        timeout = _PATIENCE

        def do_GET(self) -> None:
            body = read().encode() if self.path in _PATHS else b"see /metrics\n"
            self.send_response(200 if self.path in _PATHS else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_) -> None:
            """Print nothing, because the terminal belongs to the job."""

    server = Server(place, Handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client has left
    return server
