"""The native route, `POST /v1/encode`: several outputs of one forward pass, in the fewest bytes asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import orjson

from embedserve_runtime.api.asgi import Answer, Exchange, Header
from embedserve_runtime.api.common import read_inputs, result_headers, side_of, terms_of
from embedserve_runtime.api.encoding import base64_rows, rows_in, write_matrices, write_rows
from embedserve_runtime.api.native_schemas import EncodeBody, EncodedToken
from embedserve_runtime.api.schemas import BodyDecoder
from embedserve_runtime.errors import InvalidInput
from embedserve_runtime.heads.quantize import Precision, quantize, scales
from embedserve_runtime.readiness import Readiness
from embedserve_runtime.results import Output
from embedserve_runtime.service import Embedded, EmbeddingService, EmbedQuery
from embedserve_runtime.tokenizing import Input, Token

BYTES = b"application/octet-stream"
DTYPE = b"x-embedserve-dtype"
SHAPE = b"x-embedserve-shape"
# Precisions that lose the length of a vector unless its scale is sent along.
SCALED = (Precision.INT8, Precision.UINT8)

_decode = BodyDecoder(EncodeBody)


class NativeRoutes:
    def __init__(self, readiness: Readiness, served_model_name: str) -> None:
        self._readiness = readiness
        self._model = orjson.dumps(served_model_name)

    async def encode(self, exchange: Exchange) -> Answer:
        service = self._readiness.service()
        body, terms = _decode(exchange), terms_of(exchange)
        as_bytes = BYTES in exchange.headers.get(b"accept", b"").lower()
        _check_outputs(body, as_bytes=as_bytes)
        query = EmbedQuery(
            inputs=read_inputs(exchange, body.inputs, "inputs"),
            truncate=body.truncate,
            side=side_of(body.truncation_direction),
            prompt_name=body.prompt_name,
            prompt=body.prompt,
            normalize=body.normalize,
            dimensions=body.dimensions,
            vector_space=terms.vector_space,
            timeout=terms.timeout,
            outputs=_outputs_of(body),
        )
        # Refuses too much text before the engine works for it.
        tokens = await service.locate(query) if "tokens" in body.outputs else None
        embedded = await service.embed(query)
        headers = result_headers(exchange, service, embedded)
        if as_bytes:
            return await _bytes(embedded, body.dtype, headers)
        members = await self._members(body, service, embedded)
        if tokens is not None:
            prompt = service.prompt_of(query)
            listed = await asyncio.to_thread(_write_tokens, query.inputs, len(prompt), tokens)
            members.append(b'"tokens":' + listed)
        return Answer(b"{" + b",".join(members) + b"}", headers=headers)

    async def _members(self, body: EncodeBody, service: EmbeddingService, embedded: Embedded) -> list[bytes]:
        writer = (base64_rows if body.encoding == "base64" else rows_in)(body.dtype)
        members = [
            b'"model":' + self._model,
            b'"vector_space":' + orjson.dumps(service.card.vector_space),
            b'"dtype":' + orjson.dumps(body.dtype),
            b'"encoding":' + orjson.dumps(body.encoding),
            b'"token_counts":' + orjson.dumps(list(embedded.lengths)),
        ]
        if "dense" in body.outputs:
            members.append(b'"dense":[' + await write_rows(embedded.dense, writer) + b"]")
            if body.dtype in SCALED:
                steps = scales(embedded.dense)
                members.append(b'"scales":' + orjson.dumps(steps, option=orjson.OPT_SERIALIZE_NUMPY))
        if "hidden" in body.outputs:
            matrices = await write_matrices(embedded.hidden, body.dtype, as_base64=body.encoding == "base64")
            members.append(b'"hidden":[' + matrices + b"]")
        return members


def _outputs_of(body: EncodeBody) -> Output:
    # Tokens alone still take the forward pass's place in the queue, which tells their counts.
    return Output.DENSE | Output.HIDDEN if "hidden" in body.outputs else Output.DENSE


def _check_outputs(body: EncodeBody, *, as_bytes: bool) -> None:
    if as_bytes and set(body.outputs) != {"dense"}:
        raise InvalidInput(f"{BYTES.decode()} carries dense vectors only; accept JSON for other outputs")
    if "hidden" in body.outputs and body.dtype not in (Precision.FLOAT32, Precision.FLOAT16):
        raise InvalidInput("hidden states are written as float32 or float16")


async def _bytes(embedded: Embedded, dtype: Precision, headers: tuple[Header, ...]) -> Answer:
    rows = await asyncio.to_thread(quantize, embedded.dense, dtype)
    return Answer(
        rows.tobytes(),
        content_type=BYTES,
        headers=(*headers, (DTYPE, dtype.encode()), (SHAPE, b"%d,%d" % rows.shape)),
    )


def _write_tokens(inputs: Sequence[Input], prompt_length: int, located: list[list[Token]]) -> bytes:
    return msgspec.json.encode(
        [
            [_item(token, prompt_length if isinstance(item, str) else 0) for token in tokens]
            for item, tokens in zip(inputs, located, strict=True)
        ]
    )


def _item(token: Token, prompt_length: int) -> EncodedToken:
    start, stop = token.start, token.stop
    if start is None or stop is None or stop <= prompt_length:
        return EncodedToken(token.id, token.text, token.special, None, None)
    return EncodedToken(token.id, token.text, False, max(0, start - prompt_length), stop - prompt_length)
