"""One HTTP request from the client's pod, with whatever a test puts into it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from e2e.demo.partners import ClientPod

_CALL = """
import json, sys, urllib.error, urllib.request
call = json.load(sys.stdin)
body = call["body"].encode() or None
request = urllib.request.Request(call["url"], data=body, headers=call["headers"], method=call["method"])
try:
    with urllib.request.urlopen(request, timeout=60) as answer:
        print(json.dumps([answer.status, answer.read().decode()]))
except urllib.error.HTTPError as error:
    print(json.dumps([error.code, error.read().decode()]))
"""


@dataclass(frozen=True)
class Call:
    """A request; one with a body says that it is JSON."""

    method: str
    url: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


def send(client: ClientPod, call: Call) -> tuple[int, str]:
    """The status and the text of the answer."""
    headers = {**({"Content-Type": "application/json"} if call.body else {}), **call.headers}
    content = {"method": call.method, "url": call.url, "headers": headers, "body": call.body.decode()}
    status, text = json.loads(client.run("python3", "-c", _CALL, stdin=json.dumps(content)))
    return status, text
