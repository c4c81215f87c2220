"""Bodies that have too many values or arrays are seen before they are parsed."""

from __future__ import annotations

import json

import pytest

from embedserve_runtime.api.json_limits import JsonBounds, check_json_size
from embedserve_runtime.errors import BatchTooLarge

BOUNDS = JsonBounds(max_values=6, max_arrays=3)
WITHIN = {
    "as many values as there may be": [1, 2, 3, 4, 5, 6],
    "as many arrays as there may be": [[1], [2]],
    "a text of commas and brackets": "," * 20 + "[" * 20,
    "quotes within a text": ['a"' + "," * 20, "[" * 20 + '"'],
    "backslashes before the end of a text": ["a\\", "," * 20 + "\\\\", "["],
}
BEYOND = {
    "values": ([1] * 8, "values"),
    "values beside a text with quotes": (['"', *[1] * 8], "values"),
    "values beside a text that ends in a backslash": (["\\", *[1] * 8], "values"),
    "arrays": ([[1], [2], [3]], "arrays"),
    "arrays in arrays": ([[[[1]]]], "arrays"),
    "both": ([[1, 2]] * 9, "values"),
}


@pytest.mark.parametrize("name", [*WITHIN])
async def test_texts_may_hold_as_many_commas_and_brackets_as_they_like(name: str) -> None:
    await check_json_size(json.dumps({"inputs": WITHIN[name]}).encode(), BOUNDS)


@pytest.mark.parametrize("name", [*BEYOND])
async def test_a_body_beyond_the_bounds_is_refused_with_what_there_is_too_much_of(name: str) -> None:
    inputs, excess = BEYOND[name]
    with pytest.raises(BatchTooLarge, match=f"more than [36] {excess}; send fewer"):
        await check_json_size(json.dumps({"inputs": inputs}).encode(), BOUNDS)
