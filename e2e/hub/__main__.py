"""``python -m e2e.hub --root DIR``: the hub as a process.

Tokens come from the environment, separated by commas: HUB_READER_TOKENS may read gated repositories,
HUB_STRANGER_TOKENS are valid but may not.
"""

from __future__ import annotations

import argparse
import os
import signal
import ssl
import sys
import threading
from pathlib import Path

from e2e.hub.access import Access
from e2e.hub.server import HubServer


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.hub", description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="folder with OWNER/NAME/BRANCH/files")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument(
        "--gated", action="append", default=[], metavar="REPO", help="may be given more than once"
    )
    parser.add_argument("--certificate", type=Path, help="serve HTTPS with it; needs --key")
    parser.add_argument("--key", type=Path)
    options = parser.parse_args(arguments)
    access = Access(frozenset(options.gated), _tokens("HUB_READER_TOKENS"), _tokens("HUB_STRANGER_TOKENS"))
    tls = None
    if options.certificate is not None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(options.certificate, options.key)
    server = HubServer(options.root, access, options.host, options.port, tls)
    ended = threading.Event()
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, lambda *_: ended.set())
    with server:
        print(f"serving {options.root} at {server.url}", flush=True)
        ended.wait()
    return 0


def _tokens(variable: str) -> frozenset[str]:
    return frozenset(word for word in os.environ.get(variable, "").split(",") if word)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
