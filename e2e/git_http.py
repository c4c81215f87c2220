"""Git repositories over HTTP, by git's own server program."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import urlsplit

from e2e.server import served

# Far more than a client says that asks for one file.
_MAX_BODY_BYTES = 2**20
_SECONDS = 60


@contextmanager
def serving(root: Path, address: str) -> Iterator[str]:
    """All bare repositories in a folder, on a free port of that address; gives the base URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(b"")

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            if length > _MAX_BODY_BYTES:
                self.send_error(413)
                return
            self._answer(self.rfile.read(length))

        def _answer(self, body: bytes) -> None:
            url = urlsplit(self.path)
            environment = {
                **os.environ,
                "GIT_PROJECT_ROOT": str(root),
                "GIT_HTTP_EXPORT_ALL": "1",
                "REQUEST_METHOD": self.command,
                "PATH_INFO": url.path,
                "QUERY_STRING": url.query,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "CONTENT_LENGTH": str(len(body)),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            }
            result = subprocess.run(
                ["git", "http-backend"],
                input=body,
                env=environment,
                capture_output=True,
                timeout=_SECONDS,
                check=True,
            ).stdout
            head, _, content = result.partition(b"\r\n\r\n")
            headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
            self.send_response(int(headers.pop("Status", "200").split()[0]))
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with served(Handler, address) as url:
        yield url
