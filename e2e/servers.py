"""Small HTTP servers of tests, on this machine, for what runs in the cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def listening(address: str, handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """On a free port of that address; gives the base URL."""
    with ThreadingHTTPServer((address, 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://{address}:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def answering(address: str, document: Callable[[], str]) -> Iterator[str]:
    """Answers every GET with JSON."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = document().encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with listening(address, Handler) as url:
        yield url
