"""Token ids by the settings of tokenizer_config.json, for each class: those of transformers 4, and whether transformers
5 gives the same."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer, BertConfig, BertModel

from embedserve_runtime.config import ModelSettings
from embedserve_runtime.model.class_settings import resolve_tokenizer
from embedserve_runtime.model.folder import read_folder
from embedserve_runtime.model.reading import read_card
from embedserve_runtime.model.vocabulary import parse_tokenizer
from embedserve_runtime.tokenizing import TextTokenizer, TruncationRules
from tests.oracles.outside import answers, needs_oracles
from tests.runtime.model.identity_folders import SHAPE
from tests.runtime.model.test_added_tokens import TABLES
from tests.runtime.model.test_added_tokens import TEXTS as TABLE_TEXTS
from tests.runtime.model.test_added_tokens import write as write_table
from tests.runtime.model.test_class_settings import CASED, UNCASED, with_bytes, with_normalizer
from tests.runtime.model.test_identity_of_tokenizer_settings import byte_level_bpe, unigram
from tests.runtime.pipelines.test_end_tokens import CASES, card_of, folder_of, model, tokenizer_of
from tests.runtime.pipelines.test_end_tokens import ids_of as end_tokens_of
from tests.support.models import tiny

pytestmark = needs_oracles
__all__ = ["model"]

# Of every kind of character that a normalizer changes. Special tokens are not in them: some classes add their own.
TEXTS = ["ba de fi", "Ba\u00e9 cafe\u0301 BA\x00x", "ba\u4e2d\u6587de", "fi ba", " ba  de"]
# With a special token written out.
WRITTEN = [*TEXTS, "ba [MASK] de"]
TOKENIZERS: Mapping[str, Tokenizer] = {
    "cased": with_normalizer(CASED),
    "uncased": with_normalizer(UNCASED),
    "bytes": with_bytes(adds_blank=False),
    "bytes with a blank": with_bytes(adds_blank=True),
    "bytes in steps": byte_level_bpe(),
    "pieces": unigram(),
}
# Nothing that a class reads where there is a tokenizer.json.
UNREAD = {
    "clean_text": False,
    "lowercase": False,
    "keep_accents": True,
    "remove_space": False,
    "legacy": False,
}
CASES_OF_LETTERS: tuple[Mapping[str, Any], ...] = (
    {},
    {"do_lower_case": False},
    {"do_lower_case": False, "strip_accents": False, "tokenize_chinese_chars": False},
    {"do_lower_case": True, "strip_accents": False},
    {"tokenize_chinese_chars": False},
    {**UNREAD, "add_prefix_space": True},
    {"split_special_tokens": True},
)
BLANKS: tuple[Mapping[str, Any], ...] = (
    {},
    {**UNREAD, "do_lower_case": False, "strip_accents": True},
    {"add_prefix_space": True},
    {"add_prefix_space": False},
    {"split_special_tokens": True},
)
BERT_CLASSES = ("BertTokenizer", "DistilBertTokenizerFast", "ElectraTokenizer")
BYTES = ("bytes", "bytes with a blank", "bytes in steps")
CLASSES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("cased", "uncased"), (*BERT_CLASSES, "MPNetTokenizer", "PreTrainedTokenizerFast")),
    **dict.fromkeys(
        BYTES, ("RobertaTokenizer", "GPT2Tokenizer", "Qwen2Tokenizer", "PreTrainedTokenizerFast")
    ),
    "pieces": (
        "XLMRobertaTokenizer",
        "AlbertTokenizer",
        "XLNetTokenizer",
        "T5Tokenizer",
        "DebertaV2Tokenizer",
        "LlamaTokenizer",
        "PreTrainedTokenizerFast",
    ),
}
# transformers 4 takes the post-processor of these from flags, so both must be there.
FLAGS: Mapping[str, Mapping[str, bool]] = {"LlamaTokenizer": {"add_bos_token": True, "add_eos_token": True}}
# The others transformers 5 builds anew from their vocabulary, so that other parts of tokenizer.json count no longer; it
# knows no `add_prefix_space` of the general class.
SAME_IN_5 = {
    *((tokenizer, name) for tokenizer in ("cased", "uncased") for name in BERT_CLASSES),
    *(
        (tokenizer, "PreTrainedTokenizerFast")
        for tokenizer in ("cased", "uncased", "bytes in steps", "pieces")
    ),
}
# Rows that transformers 4 is not asked about: code of the repository's own, and folders that version 5 wrote.
NOT_OF_4 = (
    "Qwen2 by code of the repository's own (gte-Qwen2)",
    "Llama without a flag",
    "a class that transformers 4 does not know",
)

PAIRS = [(tokenizer, name) for tokenizer, names in CLASSES.items() for name in names]
Folders = Mapping[tuple[str, str], Sequence[Path]]


def settings_of(tokenizer: str) -> Sequence[Mapping[str, Any]]:
    return CASES_OF_LETTERS if tokenizer in ("cased", "uncased") else BLANKS


def write(folder: Path, model: Path, tokenizer: Tokenizer, config: Mapping[str, Any]) -> Path:
    folder.mkdir(parents=True)
    for path in model.iterdir():
        (folder / path.name).symlink_to(path)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """A folder for each of the settings, by tokenizer and class."""
    home = tmp_path_factory.mktemp("tokenizers")
    model = home / "model"
    tiny(model, BertModel, BertConfig(**SHAPE | {"vocab_size": 300}))
    return {
        (tokenizer, name): [
            write(
                home / f"{tokenizer} {name} {number}",
                model,
                TOKENIZERS[tokenizer],
                {**settings, **FLAGS.get(name, {}), "tokenizer_class": name},
            )
            for number, settings in enumerate(settings_of(tokenizer))
        ]
        for tokenizer, names in CLASSES.items()
        for name in names
    }


@pytest.fixture(scope="module")
def of_version_4(folders: Folders) -> Mapping[Path, Any]:
    paths = [path for found in folders.values() for path in found]
    asks = [{"oracle": "tokenizer", "folder": str(path), "texts": texts_of(path)} for path in paths]
    return dict(zip(paths, answers(asks), strict=True))


def texts_of(folder: Path) -> list[str]:
    return WRITTEN if folder.name.startswith(("cased", "uncased")) else TEXTS


def ids_of(folder: Path) -> list[list[int]]:
    card = read_card(folder, "local", ModelSettings(source=str(folder)))
    sequences = TextTokenizer.from_card(card).encode(texts_of(folder), "", TruncationRules(truncate=True))
    return [[int(number) for number in ids] for ids in sequences]


def of_version_5(folder: Path) -> Any:
    try:
        made = AutoTokenizer.from_pretrained(str(folder))
    except TypeError as error:
        return str(error)
    return [made(text)["input_ids"] for text in texts_of(folder)]


@pytest.mark.parametrize(("tokenizer", "name"), PAIRS)
def test_token_ids_are_those_of_transformers_4(
    folders: Folders, of_version_4: Mapping[Path, Any], tokenizer: str, name: str
) -> None:
    for settings, folder in zip(settings_of(tokenizer), folders[tokenizer, name], strict=True):
        if isinstance(of_version_4[folder], str):
            assert "from a slow version" in of_version_4[folder]
            assert "add_prefix_space" in settings
        else:
            assert ids_of(folder) == of_version_4[folder], settings


@pytest.mark.parametrize(("tokenizer", "name"), PAIRS)
def test_transformers_5_gives_the_same_for_berts_classes(
    folders: Folders, of_version_4: Mapping[Path, Any], tokenizer: str, name: str
) -> None:
    same = all(of_version_5(folder) == of_version_4[folder] for folder in folders[tokenizer, name])
    assert same == ((tokenizer, name) in SAME_IN_5)


def test_added_tokens_are_those_of_transformers_4(tmp_path: Path) -> None:
    asks, ours = [], []
    for number, table in enumerate(TABLES.values()):
        folder = tmp_path / str(number)
        folder.mkdir()
        write_table(folder, table)
        tokenizer = parse_tokenizer(resolve_tokenizer(read_folder(folder)).file)
        ours.append([tokenizer.encode(text).ids for text in TABLE_TEXTS])
        asks.append({"oracle": "tokenizer", "folder": str(folder), "texts": TABLE_TEXTS})
    assert dict(zip(TABLES, ours, strict=True)) == dict(zip(TABLES, answers(asks), strict=True))


def test_tokens_around_a_text_are_those_of_transformers_4(model: Path, tmp_path: Path) -> None:
    rows = {name: row for name, row in CASES.items() if name not in NOT_OF_4}
    texts = ["hello", "hello world"]
    asks, ours = [], []
    for number, (processor, config, _) in enumerate(rows.values()):
        folder = folder_of(model, tmp_path / str(number), tokenizer_of(processor), **config)
        asks.append({"oracle": "tokenizer", "folder": str(folder), "texts": texts})
        ours.append([end_tokens_of(card_of(folder), text) for text in texts])
    assert dict(zip(rows, ours, strict=True)) == dict(zip(rows, answers(asks), strict=True))
