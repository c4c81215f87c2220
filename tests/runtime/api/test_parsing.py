"""Bodies that are refused, and the words that say why."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from embedserve_runtime.api.errors import MalformedBody, WrongShape
from embedserve_runtime.api.schemas import cohere, native, openai, probes, ranking, score, tei
from embedserve_runtime.api.schemas.base import ApiModel
from embedserve_runtime.api.schemas.parsing import read_json, read_python
from embedserve_runtime.api.schemas.validation_errors import MAX_QUOTED, MAX_QUOTED_BODY_BYTES
from tests.runtime.api.bodies import body_of, refused

INPUTS = "a text, an array of token ids, or a list of texts and arrays of token ids"
INPUT = "a text or an array of token ids"


@pytest.mark.parametrize(
    ("model", "fields", "message"),
    [
        (tei.EmbedRequest, {"inputs": 5}, f"`inputs` must be {INPUTS} (got 5)"),
        (tei.EmbedRequest, {"inputs": {"a": 1}}, f"`inputs` must be {INPUTS} (got an object)"),
        (openai.EmbeddingRequest, {"input": True}, f"`input` must be {INPUTS} (got true)"),
        (tei.EmbedRequest, {"inputs": ["a", [1], 2.5]}, f"`inputs.2` must be {INPUT} (got 2.5)"),
        (tei.EmbedRequest, {"inputs": [True]}, f"`inputs.0` must be {INPUT} (got true)"),
        (tei.EmbedRequest, {"inputs": [["a"]]}, '`inputs.0.0` must be an integer (got "a")'),
        (tei.EmbedRequest, {"inputs": [[1, True]]}, "`inputs.0.1` must be an integer (got true)"),
        (tei.EmbedRequest, {"inputs": [[[]]]}, "`inputs.0.0` must be an integer (got a list of length 0)"),
        (tei.EmbedRequest, {"dimensions": 0}, "`dimensions` must be at least 1 (got 0)"),
        (tei.EmbedRequest, {"dimensions": "1"}, '`dimensions` must be an integer (got "1")'),
        (tei.EmbedRequest, {"dimensions": 1.0}, "`dimensions` must be an integer (got 1.0)"),
        (tei.EmbedRequest, {"dimensions": True}, "`dimensions` must be an integer (got true)"),
        (tei.EmbedRequest, {"truncate": 1}, "`truncate` must be true or false (got 1)"),
        (tei.EmbedRequest, {"truncate": "true"}, '`truncate` must be true or false (got "true")'),
        (tei.EmbedRequest, {"prompt_name": 5}, "`prompt_name` must be a text (got 5)"),
        (
            tei.EmbedRequest,
            {"truncation_direction": "Up"},
            "`truncation_direction` must be 'Left', 'left', 'Right' or 'right' (got \"Up\")",
        ),
        (ranking.RerankRequest, {"texts": "a"}, '`texts` must be a list (got "a")'),
        (ranking.RerankRequest, {"texts": ["a", 1, 2, 3]}, "`texts.1` must be a text (got 1)"),
        (
            tei.PredictRequest,
            {"inputs": ["a", 1]},
            "`inputs.1` must be a text, or an array of one text or two (got 1)",
        ),
        (tei.PredictRequest, {"inputs": [["a", 1]]}, "`inputs.0.1` must be a text (got 1)"),
        (tei.SimilarityRequest, {"inputs": "a"}, '`inputs` must be an object (got "a")'),
        (tei.SimilarityRequest, {"inputs": {"source_sentence": "a"}}, "`inputs.sentences` is missing"),
        (
            tei.SimilarityRequest,
            {"parameters": {"truncate": 1}},
            "`parameters.truncate` must be true or false (got 1)",
        ),
        (tei.TokenizeRequest, {"inputs": 5}, "`inputs` must be a text or a list of texts (got 5)"),
        (tei.TokenizeRequest, {"inputs": ["a", [1]]}, "`inputs.1` must be a text (got a list of length 1)"),
        (tei.DecodeRequest, {"ids": 5}, "`ids` must be an array of token ids or a list of them (got 5)"),
        (tei.DecodeRequest, {"ids": ["a"]}, '`ids.0` must be a token id or an array of token ids (got "a")'),
        (tei.VertexRequest, {"instances": {}}, "`instances` must be a list (got an object)"),
        (cohere.CohereEmbedRequest, {"inputs": [{"content": [{}]}]}, "`inputs.0.content.0.type` is missing"),
        (cohere.CohereEmbedRequest, {"output_dimension": 0}, "`output_dimension` must be at least 1 (got 0)"),
        (
            ranking.RerankRequest,
            {"rank_fields": "a"},
            '`rank_fields` must be a list (got "a")',
        ),
        (
            ranking.RerankRequest,
            {"documents": "a"},
            '`documents` must be a list of texts and objects with a `text` (got "a")',
        ),
        (
            ranking.RerankRequest,
            {"documents": ["a", 5]},
            "`documents.1` must be a text or an object with a `text` (got 5)",
        ),
        (ranking.RerankRequest, {"top_n": 0}, "`top_n` must be at least 1 (got 0)"),
        (
            native.EncodeRequest,
            {"outputs": []},
            "`outputs` must be a list of length 1 or more (got a list of length 0)",
        ),
        (
            native.EncodeRequest,
            {"spans": [[[1, 2, 3]]]},
            "`spans.0.0` must be a list of length 2 or less (got a list of length 3)",
        ),
        (
            native.EncodeRequest,
            {"ranges": "kept"},
            "`ranges` must be an object with `min` and `max`, or 'stored' (got \"kept\")",
        ),
        (native.EncodeRequest, {"ranges": {"min": [1]}}, "`ranges.max` is missing"),
        (
            native.EncodeRequest,
            {"dtype": "int4"},
            "`dtype` must be 'float32', 'float16', 'int8', 'uint8', 'binary' or 'ubinary' (got \"int4\")",
        ),
        (native.EncodeRequest, {"threshold": -1}, "`threshold` must be at least 0 (got -1)"),
        (native.EncodeRequest, {"threshold": "0.1"}, '`threshold` must be a number (got "0.1")'),
        (
            native.EncodeRequest,
            {"pool_factor": float("nan")},
            "`pool_factor` must be a finite number (got NaN)",
        ),
        (score.ScoreRequest, {"weights": {"dense": "x"}}, '`weights.dense` must be a number (got "x")'),
        (score.ScoreRequest, {"weights": {"dense": -0.5}}, "`weights.dense` must be at least 0 (got -0.5)"),
        (
            probes.CurrentRequest,
            {"vector_space": "vs2"},
            '`vector_space` must be a text that matches ^vs[12]-[0-9a-f]{20}$ (got "vs2")',
        ),
        (
            tei.EmbedRequest,
            {"truncate": 1, "prompt_name": 2, "normalize": 3, "dimensions": "x", "inputs": 5},
            f"`prompt_name` must be a text (got 2); `inputs` must be {INPUTS} (got 5); "
            "`truncate` must be true or false (got 1); and 2 more",
        ),
    ],
)
def test_a_wrong_value_is_refused_by_its_path_and_what_is_expected(
    model: type[ApiModel], fields: dict[str, Any], message: str
) -> None:
    content = body_of(model, **fields)
    assert refused(model, content) == message
    with pytest.raises(WrongShape) as failure:
        read_python(model, json.loads(content))
    assert failure.value.message == message


@pytest.mark.parametrize(
    ("value", "got"),
    [([], "a list of length 0"), (None, "null"), ("a", '"a"'), (1, "1"), (False, "false")],
)
def test_a_body_is_an_object(value: object, got: str) -> None:
    assert refused(tei.EmbedRequest, json.dumps(value).encode()) == f"the body must be an object (got {got})"
    with pytest.raises(WrongShape, match=r"^the value must be an object"):
        read_python(tei.EmbedRequest, value)


@pytest.mark.parametrize("value", ["x" * 10_000, "\n" * 10_000, int("9" * 4_000)])
def test_a_value_is_quoted_in_part_only(value: object) -> None:
    message = refused(tei.EmbedRequest, body_of(tei.EmbedRequest, truncate=value))
    quoted = message.partition("(got ")[2].removesuffix(")")
    assert len(quoted) == MAX_QUOTED
    assert quoted.endswith("...")


def test_a_large_body_is_refused_without_quoting_it() -> None:
    content = body_of(tei.EmbedRequest, inputs=["x" * MAX_QUOTED_BODY_BYTES, 1.5])
    assert refused(tei.EmbedRequest, content) == f"`inputs.1` must be {INPUT}"


NOT_JSON = "the body is not valid JSON: "


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", "empty body", id="empty"),
        pytest.param(b" \n", "empty body", id="white space"),
        pytest.param(b"{", f"{NOT_JSON}EOF while parsing an object at line 1 column 1", id="cut off"),
        pytest.param(
            b'{"inputs":"a"} x', f"{NOT_JSON}trailing characters at line 1 column 16", id="trailing"
        ),
        pytest.param(b'{"inputs":\n\xff}', f"{NOT_JSON}expected value at line 2 column 1", id="not a value"),
        pytest.param(
            b'{"inputs":"\xff"}',
            f"{NOT_JSON}the text of `inputs` is not UTF-8 at line 1 column 12",
            id="not UTF-8",
        ),
        pytest.param(
            b'{"x":' + b"[" * 4_000, f"{NOT_JSON}it is nested too deep at line 1 column 206", id="deep"
        ),
        pytest.param(
            2 * b"\xef\xbb\xbf" + b"{}",
            f"{NOT_JSON}expected value at line 1 column 1",
            id="two byte order marks",
        ),
        pytest.param(
            b'{"inputs":"\\u12"}', f"{NOT_JSON}invalid escape at line 1 column 16", id="short escape"
        ),
    ],
)
def test_what_is_no_json_is_malformed(content: bytes, message: str) -> None:
    with pytest.raises(MalformedBody) as failure:
        read_json(tei.EmbedRequest, content)
    assert failure.value.message == message


@pytest.mark.parametrize(
    ("content", "where", "half"),
    [
        (rb'{"inputs":"\ud83d"}', "the text of `inputs`", r"\ud83d"),
        (rb'{"inputs":"\ud83d and more"}', "the text of `inputs`", r"\ud83d"),
        (rb'{"inputs":["\ud83d\ude00","a","\ude00"]}', "the text of `inputs.2`", r"\ude00"),
        (rb'{"inputs":["\ud83d\ude00\ude00"]}', "the text of `inputs.0`", r"\ude00"),
        (rb'{"inputs":["a \uD83D\u0041"]}', "the text of `inputs.0`", r"\ud83d"),
        (rb'{"inputs":["a \ud83d\ud83d\ude00"]}', "the text of `inputs.0`", r"\ud83d"),
        (b'{"truncate":true,\n\n"inputs":[\n"a",\n"\\\\\\ud83d"]}', "the text of `inputs.1`", r"\ud83d"),
        (rb'{"\ud83d":1}', "the name of a field", r"\ud83d"),
        (
            rb'{"inputs":["' + b"x" * MAX_QUOTED_BODY_BYTES + rb'","\ud83d"]}',
            "the text of `inputs.1`",
            r"\ud83d",
        ),
    ],
)
def test_half_a_surrogate_pair_is_named_with_its_field(content: bytes, where: str, half: str) -> None:
    with pytest.raises(MalformedBody) as failure:
        read_json(tei.EmbedRequest, content)
    assert failure.value.message.startswith(f"{NOT_JSON}{where} has half a surrogate pair, {half}: ")


@given(content=st.binary() | st.text().map(str.encode))
@example(content=b'{"inputs":"\\ud83d')
@example(content=b'{"inputs":"\\ud83d\\')
@example(content=b'{"inputs":"\\ud83d\\u')
@example(content=b'{"inputs":["\xff", "\\ud83d"]}')
def test_any_bytes_are_taken_or_refused(content: bytes) -> None:
    for body in (content, b'{"inputs":"' + content, b'{"inputs":"' + content + b'"}'):
        message = "taken"
        try:
            read_json(tei.EmbedRequest, body)
        except (MalformedBody, WrongShape) as error:
            message = error.message
        assert 0 < len(message) < 600
