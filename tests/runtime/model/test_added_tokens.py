"""`added_tokens_decoder` of tokenizer_config.json counts as transformers has it, also against tokenizer.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from embedserve_runtime.errors import ModelInvalid
from embedserve_runtime.model.class_settings import resolve_tokenizer
from embedserve_runtime.model.folder import read_folder
from embedserve_runtime.model.vocabulary import parse_tokenizer
from tests.runtime.model.test_identity_of_tokenizer_settings import word_piece

# With tokens beside words and alone, in other cases, and with a word that only a table knows.
TEXTS = ("ba [MASK] de", "ba[MASK]de  [MASK]", "bade BA ba, Ba", "zzz ba zzzba")
CLASS = {"tokenizer_class": "PreTrainedTokenizerFast"}
MASK = {
    "content": "[MASK]",
    "single_word": False,
    "lstrip": False,
    "rstrip": False,
    "normalized": False,
    "special": True,
}
WORD = {"content": "ba", "normalized": False}
TABLES: Mapping[str, Mapping[str, Any]] = {
    "blanks are part of a token": {"4": MASK | {"lstrip": True, "rstrip": True}},
    "a token is a whole word": {"4": MASK | {"single_word": True}},
    "a word is a token": {"5": WORD},
    "a word is a token by itself alone": {"5": WORD | {"single_word": True}},
    "a word is a special token": {"5": WORD | {"special": True}},
    "a token is read as the text is normalized": {"5": WORD | {"normalized": True}},
    "a new token has the next id": {"900": {"content": "zzz"}},
    "two new ones are ordered by number": {"100": {"content": "zzz"}, "99": {"content": "zz"}},
}


def write(folder: Path, table: object) -> None:
    word_piece().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(CLASS | {"added_tokens_decoder": table}))
    (folder / "config.json").write_text("{}")


# The pre-tokenizer drops blanks, and a whole word is one piece without a table.
WITHOUT_EFFECT = ("blanks are part of a token", "a word is a token by itself alone")


@pytest.mark.parametrize(("name", "table"), TABLES.items(), ids=TABLES)
def test_a_table_that_contradicts_tokenizer_json_counts(
    tmp_path: Path, name: str, table: Mapping[str, Any]
) -> None:
    write(tmp_path, table)
    resolved = resolve_tokenizer(read_folder(tmp_path))
    ours, theirs = parse_tokenizer(resolved.file), AutoTokenizer.from_pretrained(tmp_path)
    plain = word_piece()
    assert [ours.encode(text).ids for text in TEXTS] == [theirs(text)["input_ids"] for text in TEXTS]
    changes = any(ours.encode(text).ids != plain.encode(text).ids for text in TEXTS)
    assert changes == (name not in WITHOUT_EFFECT)
    assert len(resolved.overrides) == len(table)
    assert all(
        override.startswith("added_tokens_decoder of tokenizer_config.json: ")
        for override in resolved.overrides
    )


@pytest.mark.parametrize("table", [{"4": MASK}, {"4": {"content": "[MASK]", "special": True}}, {}, None])
def test_a_table_that_says_the_same_changes_nothing(tmp_path: Path, table: object) -> None:
    write(tmp_path, table)
    resolved = resolve_tokenizer(read_folder(tmp_path))
    assert resolved.file.content == (tmp_path / "tokenizer.json").read_bytes()
    assert resolved.overrides == ()


@pytest.mark.parametrize("table", [{"four": MASK}, {"4": {"special": True}}, ["[MASK]"]])
def test_a_table_that_cannot_be_read_is_refused(tmp_path: Path, table: object) -> None:
    write(tmp_path, table)
    with pytest.raises(ModelInvalid, match="added_tokens_decoder"):
        resolve_tokenizer(read_folder(tmp_path))
