"""Stores fetched models by the digest of what is in them.

The store is one folder:

    blobs/<sha256>            every file once, read-only
    models/<digest>/          files/: hard links into blobs under the files' own names; manifest.json: what they are
    artifacts/<hash>/         what was made from a model (ONNX graphs), with a manifest.json
    refs/<key>.json           a source and revision as asked for -> the commit and the digest
    staging/<key>.<time>.*    what a writer builds; renamed to its final path when it is whole

There are no locks, which some network file systems only pretend to have: each writer has a folder of its own and ends
with one rename, so a reader sees all of a model or nothing, and of two writers one model stays.
"""

from embedserve_runtime.store.manifest import Manifest, ModelName, ModelReference, StoredFile
from embedserve_runtime.store.publishing import find_folder, is_intact, publish_folder, remove_folder
from embedserve_runtime.store.store import FetchedFile, Store

__all__ = [
    "FetchedFile",
    "Manifest",
    "ModelName",
    "ModelReference",
    "Store",
    "StoredFile",
    "find_folder",
    "is_intact",
    "publish_folder",
    "remove_folder",
]
