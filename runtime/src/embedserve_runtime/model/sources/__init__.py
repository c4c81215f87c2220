"""Where a model comes from: a local folder, a hub, an archive at a URL, an S3-compatible server; into the store."""

from embedserve_runtime.model.sources.opening import LocatedModel, fetch_model, note_identity, open_model

__all__ = ["LocatedModel", "fetch_model", "note_identity", "open_model"]
