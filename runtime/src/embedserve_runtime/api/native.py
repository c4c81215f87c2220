"""The native route, `POST /v1/encode`: several outputs of one forward pass, in the fewest bytes asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import orjson

from embedserve_runtime.api.asgi import Answer, Exchange
from embedserve_runtime.api.cohere import prompt_of_role
from embedserve_runtime.api.common import read_inputs, result_lines, side_of, terms_of
from embedserve_runtime.api.native_answer import FLOATS, Form, form_of, write_results
from embedserve_runtime.api.native_schemas import EncodeBody, EncodedToken
from embedserve_runtime.api.schemas import BodyDecoder
from embedserve_runtime.errors import InvalidInput, WrongModelKind
from embedserve_runtime.readiness import Readiness
from embedserve_runtime.results import Output
from embedserve_runtime.service import Embedded, EmbeddingService, EmbedQuery
from embedserve_runtime.tokenizing import Input, Token

BYTES = b"application/octet-stream"
DTYPE = b"x-embedserve-dtype"
SHAPE = b"x-embedserve-shape"
OUTPUTS = {
    "dense": Output.DENSE,
    "sparse": Output.SPARSE,
    "multi_vector": Output.MULTI_VECTOR,
    "hidden": Output.HIDDEN,
}

_decode = BodyDecoder(EncodeBody)


class NativeRoutes:
    def __init__(self, readiness: Readiness, served_model_name: str) -> None:
        self._readiness = readiness
        self._model = orjson.dumps(served_model_name)

    async def encode(self, exchange: Exchange) -> Answer:
        service = self._readiness.service()
        body = _decode(exchange)
        terms = terms_of(exchange, body.model)
        as_bytes = BYTES in exchange.headers.get(b"accept", b"").lower()
        wanted = _wanted(body, service)
        form = form_of(body, service)
        _check_outputs(body, wanted, as_bytes=as_bytes)
        name, prompt = prompt_of_role(body.input_type, body.prompt_name, body.prompt, service.card)
        query = EmbedQuery(
            inputs=read_inputs(exchange, body.inputs, "inputs"),
            truncate=body.truncate,
            side=side_of(body.truncation_direction),
            prompt_name=name,
            prompt=prompt,
            normalize=body.normalize,
            dimensions=body.dimensions,
            vector_space=terms.vector_space,
            timeout=terms.timeout,
            outputs=wanted,
            top_k=body.top_k,
            threshold=body.threshold or 0.0,
            role=body.input_type,
            spans=None
            if body.spans is None
            else [[(start, end) for start, end in one] for one in body.spans],
            pool_factor=body.pool_factor,
        )
        # Refuses too much text before the engine works for it.
        lists_tokens = body.outputs is not None and "tokens" in body.outputs
        tokens = await service.locate(query) if lists_tokens else None
        embedded = await service.embed(query)
        lines = result_lines(exchange, service, embedded.effort)
        if as_bytes:
            return await _bytes(embedded, form, lines)
        members = [
            b'"model":' + self._model,
            b'"vector_space":' + orjson.dumps(service.card.vector_space),
            b'"dtype":' + orjson.dumps(body.dtype),
            b'"encoding":' + orjson.dumps(body.encoding),
            b'"token_counts":' + orjson.dumps(list(embedded.effort.lengths)),
            *await write_results(form, wanted, service, embedded),
        ]
        if tokens is not None:
            prompt = service.prompt_of(query)
            listed = await asyncio.to_thread(_write_tokens, query.inputs, len(prompt), tokens)
            members.append(b'"tokens":' + listed)
        return Answer(b"{" + b",".join(members) + b"}", lines=lines)


def _wanted(body: EncodeBody, service: EmbeddingService) -> Output:
    """Tokens alone come with what the model is for: their request runs like any other. Spans are a result too."""
    wanted = Output(0)
    for name in body.outputs or ():
        wanted |= OUTPUTS.get(name, Output(0))
    return wanted if body.spans is not None else wanted or service.card.main_output


def _check_outputs(body: EncodeBody, wanted: Output, *, as_bytes: bool) -> None:
    if wanted is Output.LOGITS:
        raise WrongModelKind("model gives scores and nothing to encode; use /rerank or /predict")
    if as_bytes and (
        wanted is not Output.DENSE or "tokens" in (body.outputs or ()) or body.spans is not None
    ):
        raise InvalidInput(f"{BYTES.decode()} carries dense vectors only; accept JSON for other outputs")
    if wanted & (Output.HIDDEN | Output.MULTI_VECTOR) and body.dtype not in FLOATS:
        raise InvalidInput("hidden states and multi-vectors are written as float32 or float16")


async def _bytes(embedded: Embedded, form: Form, lines: bytes) -> Answer:
    rows = await asyncio.to_thread(form.quantized, embedded.dense)
    return Answer(
        rows.tobytes(),
        content_type=BYTES,
        headers=((DTYPE, form.precision.encode()), (SHAPE, b"%d,%d" % rows.shape)),
        lines=lines,
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
