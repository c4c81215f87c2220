"""Fetches a model from its source into the store.

A source is a local folder, a hub, an archive at a URL or an S3-compatible server.
"""

from embedserve_runtime.sources.opening import (
    LocatedModel,
    fetch_model,
    find_present_model,
    open_model,
    record_identity,
)

__all__ = ["LocatedModel", "fetch_model", "find_present_model", "open_model", "record_identity"]
