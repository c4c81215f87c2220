"""Names objects that are passed on whole, and spells values in the one form that can be compared.

What is read of a received object is read by a view of its kind (`kube.views`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, TypeAlias

Manifest: TypeAlias = dict[str, Any]
"""An object that is to be sent."""

Received: TypeAlias = Mapping[str, Any]
"""An object that came from the API server."""


def format_canonical_json(value: Any) -> str:
    """Return the one spelling that equal JSON values share."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def compute_short_hash(value: Any) -> str:
    """Return eight hex digits that identify a JSON value: enough to tell the few variants of one service
    apart.
    """
    return hashlib.sha256(format_canonical_json(value).encode()).hexdigest()[:8]
