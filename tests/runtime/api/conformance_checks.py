"""Checks what a row of the conformance table asks of an answer: shapes, keys and order, no values of vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx

Check = Callable[[httpx.Response], bool]

TIMING = ("compute", "total", "tokenization", "queue", "inference")


def vectors(count: int, dimensions: int = 8) -> Check:
    return lambda answer: [len(row) for row in answer.json()] == [dimensions] * count


def states(*tokens: int) -> Check:
    return lambda answer: [[len(row) for row in part] for part in answer.json()] == [[8] * n for n in tokens]


def equals(want: Any) -> Check:
    return lambda answer: bool(answer.json() == want)


def error(kind: str, text: str = "") -> Check:
    def check(answer: httpx.Response) -> bool:
        content = answer.json()
        return content["error_type"] == kind and text in content["error"]

    return check


def openai_error(kind: str) -> Check:
    """TEI's flat keys and OpenAI's nested ones."""

    def check(answer: httpx.Response) -> bool:
        content = answer.json()
        flat = content["type"] == kind and content["code"] == answer.status_code and content["message"]
        return bool(flat and content["error"]["message"] == content["message"])

    return check


def tokens(*want: tuple[Any, ...]) -> Check:
    """(text, special, start, stop) of one text."""
    return lambda answer: (
        [tuple(token[key] for key in ("text", "special", "start", "stop")) for token in answer.json()[0]]
        == list(want)
    )


def sparse(count: int) -> Check:
    def check(answer: httpx.Response) -> bool:
        content = answer.json()
        indices = [[entry["index"] for entry in item] for item in content]
        fine = all(
            entry["value"] > 0 and set(entry) == {"index", "value"} for item in content for entry in item
        )
        return len(content) == count and fine and all(index and index == sorted(index) for index in indices)

    return check


def ranked(*keys: str) -> Check:
    def check(answer: httpx.Response) -> bool:
        content = answer.json()
        scores = [item["score"] for item in content]
        shaped = all(set(item) == set(keys) for item in content)
        return shaped and len(content) == 2 and scores == sorted(scores, reverse=True)

    return check


def labelled(*, total: float = 1.0) -> Check:
    """All three labels of one text, by score; the scores' sum."""

    def check(answer: httpx.Response) -> bool:
        content = answer.json()
        scores = [item["score"] for item in content]
        named = {item["label"] for item in content} == {"bad", "fine", "good"}
        return named and scores == sorted(scores, reverse=True) and abs(sum(scores) - total) < 1e-5

    return check


def empty(answer: httpx.Response) -> bool:
    return answer.content == b"" and "content-type" not in answer.headers


def timed(answer: httpx.Response) -> bool:
    times = all(answer.headers[f"x-{name}-time"].isdigit() for name in TIMING)
    return times and answer.headers["x-compute-tokens"].isdigit()


def untimed(answer: httpx.Response) -> bool:
    return "x-total-time" not in answer.headers


def both(*checks: Check) -> Check:
    return lambda answer: all(check(answer) for check in checks)


def openai_list(count: int) -> Check:
    def check(answer: httpx.Response) -> bool:
        content = answer.json()
        data = content["data"]
        return (
            content["object"] == "list"
            and content["model"] == "tiny"
            and [item["index"] for item in data] == list(range(count))
            and {item["object"] for item in data} == {"embedding"}
            and set(content["usage"]) == {"prompt_tokens", "total_tokens"}
        )

    return check
