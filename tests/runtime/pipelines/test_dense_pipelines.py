"""Whole dense pipelines against sentence-transformers: text in, vector out, on every engine."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Module, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Dropout, Pooling
from transformers import BertModel

from embedserve_runtime.errors import EmbedserveError, ModelInvalid, UnsupportedArchitecture
from tests.runtime.engines.engines import ENGINES
from tests.runtime.heads.head_runner import card_of, greatest, runner_of
from tests.runtime.model.test_card import edit
from tests.runtime.pipelines.folders import TEXTS, bert, embed
from tests.support.tolerances import FP32_MAX_ABS_DIFF

SIZE = 24
PROMPTS = {"query": "ask for: ", "passage": "a longer prompt, with signs: "}

Chain = Callable[[], list[Module]]


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bert(tmp_path_factory.mktemp("bert"), BertModel)


def saved(bare: Path, folder: Path, *modules: Module, **settings: Any) -> SentenceTransformer:
    """Saved and loaded again, so that both sides read the same files."""
    model = SentenceTransformer(modules=[Transformer(str(bare)), *modules], device="cpu", **settings)
    model.save_pretrained(str(folder), create_model_card=False)
    return SentenceTransformer(str(folder), device="cpu")


def pooling(*modes: Any, **settings: Any) -> Pooling:
    return Pooling(SIZE, pooling_mode=modes, **settings)


def dense(activation: torch.nn.Module | None, out: int = 10, **settings: Any) -> Dense:
    return Dense(SIZE, out, activation_function=activation, **settings)


MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
ACTIVATIONS = (
    torch.nn.Identity(),
    torch.nn.Tanh(),
    torch.nn.ReLU(),
    torch.nn.Sigmoid(),
    torch.nn.SiLU(),
    torch.nn.GELU(),
)
CHAINS: dict[str, Chain] = {
    **{mode: lambda mode=mode: [pooling(mode)] for mode in MODES},  # type: ignore[misc]
    **{
        f"dense, {type(module).__name__}": lambda module=module: [pooling("mean"), dense(module)]  # type: ignore[misc]
        for module in ACTIVATIONS
    },
    "all poolings in another order": lambda: [pooling(*reversed(MODES)), Normalize()],
    "two poolings, dense, normalize": lambda: [
        pooling("cls", "mean"),
        Dense(2 * SIZE, 7, bias=False, activation_function=None),
        Normalize(),
    ],
    "two dense modules": lambda: [
        pooling("mean"),
        dense(torch.nn.Tanh(), 40),
        Dense(40, 12, activation_function=None),
    ],
    "residuals": lambda: [
        pooling("mean"),
        dense(torch.nn.Tanh(), SIZE, use_residual=True),
        dense(torch.nn.Tanh(), use_residual=True),
        Normalize(),
    ],
    "dropout does nothing": lambda: [pooling("mean"), Dropout(0.5), Normalize()],
}


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS.keys())
def test_vectors_equal_sentence_transformers_on_every_engine(
    bare: Path, tmp_path: Path, chain: Chain
) -> None:
    torch.manual_seed(1)
    want = saved(bare, tmp_path, *chain()).encode(TEXTS)
    for engine in ENGINES:
        runner = runner_of(tmp_path, engine)
        assert greatest(embed(runner, TEXTS) - want) <= FP32_MAX_ABS_DIFF


@pytest.mark.parametrize("include", [True, False], ids=["prompt pooled", "prompt left out"])
@pytest.mark.parametrize("mode", MODES)
def test_prompts_and_the_default_prompt_equal_sentence_transformers(
    bare: Path, tmp_path: Path, mode: str, include: bool
) -> None:
    settings = {"prompts": PROMPTS, "default_prompt_name": "query"}
    model = saved(bare, tmp_path, pooling(mode, include_prompt=include), Normalize(), **settings)
    runner = runner_of(tmp_path, "torch")
    assert (runner.card.default_prompt, runner.card.pipeline.include_prompt) == ("query", include)
    for name in (None, *PROMPTS):
        want = model.encode(TEXTS, prompt_name=name)
        assert greatest(embed(runner, TEXTS, name) - want) <= FP32_MAX_ABS_DIFF


def test_a_prompt_that_is_left_out_of_pooling_changes_the_identity(bare: Path, tmp_path: Path) -> None:
    saved(bare, tmp_path, pooling("mean"))
    before = card_of(tmp_path).vector_space
    edit(tmp_path / "1_Pooling" / "config.json", include_prompt=False)
    assert card_of(tmp_path).vector_space != before


def test_a_residual_changes_the_identity(bare: Path, tmp_path: Path) -> None:
    saved(bare, tmp_path, pooling("mean"), dense(torch.nn.Tanh(), SIZE))
    before = card_of(tmp_path).vector_space
    edit(tmp_path / "2_Dense" / "config.json", use_residual=True)
    assert card_of(tmp_path).vector_space != before


def test_of_several_dense_folders_only_the_one_that_modules_json_names_is_used(
    bare: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    for activation, out, name in ((None, 7, "1_Dense"), (torch.nn.ReLU(), 10, "3_Dense")):
        saved(bare, tmp_path / name, pooling("mean"), dense(activation, out))
    saved(bare, folder, pooling("mean"), dense(torch.nn.Tanh()))
    alone = card_of(folder).vector_space
    for name in ("1_Dense", "3_Dense"):
        shutil.copytree(tmp_path / name / "2_Dense", folder / name)
    spaces = set()
    for name in ("2_Dense", "3_Dense", "1_Dense"):
        lines = json.loads((folder / "modules.json").read_text())
        lines[-1]["path"] = name
        (folder / "modules.json").write_text(json.dumps(lines))
        runner = runner_of(folder, "torch")
        want = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
        assert greatest(embed(runner, TEXTS) - want) <= FP32_MAX_ABS_DIFF
        assert (runner.card.vector_space == alone) == (name == "2_Dense")
        spaces.add(runner.card.vector_space)
    assert len(spaces) == 3


LENGTHS: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "by the modules": ({"max_seq_length": 20}, {}, 20),
    "by the modules, above the tokenizer's": ({"max_seq_length": 60}, {"model_max_length": 30}, 60),
    "by the tokenizer": ({"max_seq_length": None}, {"model_max_length": 30}, 30),
    "by the encoder, where the tokenizer has no limit": (
        {"max_seq_length": None},
        {"model_max_length": 10**30},
        64,
    ),
    "by the encoder, where the tokenizer says nothing": (
        {"max_seq_length": None},
        {"model_max_length": None},
        64,
    ),
    "by the encoder, where the tokenizer says more": (
        {"max_seq_length": None},
        {"model_max_length": 512},
        64,
    ),
}


@pytest.mark.parametrize(("modules", "tokenizer", "want"), LENGTHS.values(), ids=LENGTHS.keys())
def test_the_longest_input_is_that_of_sentence_transformers(
    bare: Path, tmp_path: Path, modules: dict[str, Any], tokenizer: dict[str, Any], want: int
) -> None:
    saved(bare, tmp_path, pooling("mean"))
    edit(tmp_path / "sentence_bert_config.json", **modules)
    edit(tmp_path / "tokenizer_config.json", max_length=None, **tokenizer)
    assert card_of(tmp_path).max_length == want
    model = SentenceTransformer(str(tmp_path), device="cpu")
    assert model.max_seq_length == want
    runner = runner_of(tmp_path, "torch")
    long = ["word " * 200]
    assert greatest(embed(runner, long) - model.encode(long)) <= FP32_MAX_ABS_DIFF


def test_a_pooling_without_any_mode_is_the_mean_as_in_sentence_transformers(
    bare: Path, tmp_path: Path
) -> None:
    saved(bare, tmp_path, pooling("cls"))
    (tmp_path / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": SIZE, "pooling_mode_cls_token": False})
    )
    runner = runner_of(tmp_path, "torch")
    want = SentenceTransformer(str(tmp_path), device="cpu").encode(TEXTS)
    assert greatest(embed(runner, TEXTS) - want) <= FP32_MAX_ABS_DIFF


def modules_of(*kinds: str) -> Callable[[Path], None]:
    paths = {"Transformer": "", "Pooling": "1_Pooling", "Dense": "2_Dense"}

    def write(folder: Path) -> None:
        lines = [
            {
                "idx": number,
                "path": paths.get(kind, f"{number}_{kind}"),
                "type": f"sentence_transformers.models.{kind}",
            }
            for number, kind in enumerate(kinds)
        ]
        (folder / "modules.json").write_text(json.dumps(lines))

    return write


def change(path: str, **changes: object) -> Callable[[Path], None]:
    return lambda folder: edit(folder / path, **changes)


REFUSED: dict[str, tuple[Callable[[Path], None], type[EmbedserveError], str]] = {
    "an unknown module": (
        modules_of("Transformer", "LSTM", "Pooling"),
        UnsupportedArchitecture,
        "module sentence_transformers.models.LSTM is not supported",
    ),
    "a module without effect on others": (
        modules_of("Transformer", "Pooling", "LayerNorm"),
        UnsupportedArchitecture,
        "models.LayerNorm is not supported",
    ),
    "normalized before the dense module": (
        modules_of("Transformer", "Pooling", "Normalize", "Dense"),
        UnsupportedArchitecture,
        "the modules Transformer, Pooling, Normalize, Dense are not supported together",
    ),
    "pooled twice": (
        modules_of("Transformer", "Pooling", "Pooling"),
        UnsupportedArchitecture,
        "the modules Transformer, Pooling, Pooling are not",
    ),
    "no encoder": (
        modules_of("Pooling"),
        UnsupportedArchitecture,
        "the modules Pooling are not supported together",
    ),
    "an unknown pooling": (
        change("1_Pooling/config.json", pooling_mode="attention"),
        UnsupportedArchitecture,
        r"1_Pooling/config.json: pooling attention is not supported; supported: cls, max",
    ),
    "no pooling": (
        change("1_Pooling/config.json", pooling_mode=[]),
        UnsupportedArchitecture,
        "pooling none is not supported",
    ),
    "an unknown activation": (
        change("2_Dense/config.json", activation_function="torch.nn.modules.activation.Mish"),
        ModelInvalid,
        "activation_function torch.nn.modules.activation.Mish is not supported; supported: torch",
    ),
    "a residual without its tensor": (
        change("2_Dense/config.json", use_residual=True),
        ModelInvalid,
        "2_Dense/model.safetensors lacks the tensor residual.weight",
    ),
    "another input": (
        change("2_Dense/config.json", module_input_name="cls_token"),
        UnsupportedArchitecture,
        "reads cls_token and writes",
    ),
    "tokens behind pooling": (
        change(
            "2_Dense/config.json", module_input_name="token_embeddings", module_output_name="token_embeddings"
        ),
        UnsupportedArchitecture,
        "must read sentence_embedding after a Pooling module",
    ),
    "another size": (
        change("2_Dense/config.json", in_features=48),
        ModelInvalid,
        "2_Dense: takes 48 features, the step before gives 24",
    ),
}


@pytest.mark.parametrize(("damage", "want_error", "want_message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_a_pipeline_has_and_we_do_not_stops_the_start_by_name(
    bare: Path,
    tmp_path: Path,
    damage: Callable[[Path], None],
    want_error: type[EmbedserveError],
    want_message: str,
) -> None:
    saved(bare, tmp_path, pooling("mean"), dense(torch.nn.Tanh()))
    damage(tmp_path)
    with pytest.raises(want_error, match=want_message):
        card_of(tmp_path)
