"""The peer of `benchmarks.serving`: sentence-transformers behind plain FastAPI.

One text or list at a time is encoded, in a thread. As a plain function FastAPI would run 40 of them side by side, each
with torch's own threads, which is several times slower on two cores.

    python -m benchmarks.fastapi_peer MODEL PORT
"""

from __future__ import annotations

import asyncio
import sys

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer


class Body(BaseModel):
    inputs: str | list[str]


def app_of(model: SentenceTransformer) -> FastAPI:
    app = FastAPI()
    one_at_a_time = asyncio.Lock()

    def encode(texts: list[str]) -> list[list[float]]:
        vectors: list[list[float]] = model.encode(texts, normalize_embeddings=True).tolist()
        return vectors

    @app.post("/embed")
    async def embed(body: Body) -> list[list[float]]:
        texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
        async with one_at_a_time:
            return await asyncio.to_thread(encode, texts)

    return app


def main() -> None:
    model = SentenceTransformer(sys.argv[1], device="cpu")
    uvicorn.run(app_of(model), port=int(sys.argv[2]), log_level="warning")


if __name__ == "__main__":
    main()
