"""``python -m e2e.demo.reference``: what sentence-transformers itself makes of the demo's texts, as JSON.

A process of its own, so that loading torch goes on while the cluster starts.
"""

from __future__ import annotations

import json
import sys

from sentence_transformers import SentenceTransformer

from e2e.demo.texts import fifty_texts
from e2e.hub.samples import model_folder


def main() -> int:
    model = SentenceTransformer(str(model_folder()), device="cpu")
    vectors = model.encode(list(fifty_texts()), batch_size=8, show_progress_bar=False)
    json.dump(vectors.astype(float).tolist(), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
