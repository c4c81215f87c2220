"""jina-embeddings-v5-text, and jina-embeddings-v3 as transformers has it: a folder of peft's files for each task."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from transformers import JinaEmbeddingsV3Model

from embedserve_runtime.config import ModelSettings
from embedserve_runtime.errors import ConfigError, ModelFileMissing
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.pipeline import Pooling
from embedserve_runtime.model.reading import read_card
from tests.census.dense_folders import save_dense, write_modules
from tests.census.jina_v5 import BACKBONES, PROMPTS, TASKS, merge_jina_v5, save_jina_v5
from tests.census.kinds import ENGINES
from tests.census.layouts import edit_config, write_json
from tests.census.test_jina_embeddings_v3 import runner_of
from tests.census.tokenizers import MAX_TOKENS
from tests.runtime.heads.head_runner import greatest
from tests.runtime.pipelines.folders import TEXTS, embed
from tests.support.tolerances import FP32_MAX_ABS_DIFF

Folders = tuple[Path, Path]


@pytest.fixture(scope="module")
def nano(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return save_jina_v5("jina-v5-eurobert", tmp_path_factory.mktemp("nano"))


def card_of(folder: Path, *tasks: str) -> ModelCard:
    return read_card(folder, "local", ModelSettings(source=str(folder), adapters=tasks))


@pytest.mark.parametrize("engine", ENGINES)
def test_the_vectors_of_a_task_are_those_of_its_adapter(nano: Folders, tmp_path: Path, engine: str) -> None:
    twin, published = nano
    merged = merge_jina_v5(published, twin, tmp_path / "merged", "text-matching")
    write_modules(merged, "last normalize", max_length=MAX_TOKENS)
    model = SentenceTransformer(str(merged), device="cpu")
    runner = runner_of(published, engine, "text-matching")
    for name, text in PROMPTS.items():
        found = embed(runner, TEXTS, name)
        assert greatest(found - model.encode(TEXTS, prompt=text)) <= FP32_MAX_ABS_DIFF


@pytest.mark.parametrize("kind", BACKBONES)
def test_each_task_has_a_vector_space_and_retrieval_is_the_default(kind: str, tmp_path: Path) -> None:
    _, published = save_jina_v5(kind, tmp_path)
    cards = {task: card_of(published, task) for task in TASKS}
    assert len({card.vector_space for card in cards.values()}) == len(TASKS)
    default = card_of(published)
    assert (default.adapter_task, default.vector_space) == ("retrieval", cards["retrieval"].vector_space)
    assert set(default.adapter_tasks) == set(TASKS)
    assert (dict(default.prompts), default.default_prompt) == (PROMPTS, "document")
    assert (default.pipeline.pooling, default.pipeline.normalize) == ((Pooling.LAST,), True)
    assert not default.guesses_pooling
    assert default.encoder.layers[0].attention.causal is (kind == "jina-v5-qwen3")


def test_a_folder_without_the_adapter_of_the_default_task_is_refused(nano: Folders, tmp_path: Path) -> None:
    folder = tmp_path / "bare"
    shutil.copytree(nano[1], folder)
    shutil.rmtree(folder / "adapters" / "retrieval")
    with pytest.raises(ModelFileMissing, match="no folder with the adapter of the task 'retrieval'"):
        card_of(folder)
    with pytest.raises(ConfigError, match="known: classification, clustering, text-matching"):
        card_of(folder, "retrieval")


def test_a_folder_that_config_json_does_not_name_is_no_task(nano: Folders, tmp_path: Path) -> None:
    folder = tmp_path / "fewer"
    shutil.copytree(nano[1], folder)
    edit_config(folder, task_names=["retrieval"])
    assert card_of(folder).adapter_tasks == ("retrieval",)


@pytest.mark.parametrize("engine", ENGINES)
def test_folders_of_jina_embeddings_v3_are_called_as_requests_call_its_tasks(
    tmp_path: Path, engine: str
) -> None:
    folder, _ = save_dense("jina-embeddings-v3", "mean normalize", tmp_path)
    model = JinaEmbeddingsV3Model.from_pretrained(folder)
    modules = ("layers.0.self_attn.q_proj", "layers.0.self_attn.v_proj", "layers.1.mlp.fc1")
    source = torch.Generator().manual_seed(3)
    factors: dict[str, torch.Tensor] = {}
    for module in modules:
        weight = model.get_submodule(module).weight
        a = torch.randn(2, weight.shape[1], generator=source) * 0.3
        b = torch.randn(weight.shape[0], 2, generator=source) * 0.3
        factors |= {f"base_model.model.{module}.lora_{one}.weight": by for one, by in (("A", a), ("B", b))}
        weight.data += 3 / 2 * (b @ a)
    for name in ("retrieval_query", "retrieval_passage", "text_matching"):
        write_json(folder / name / "adapter_config.json", {"peft_type": "LORA", "r": 2, "lora_alpha": 3})
        save_file(factors, folder / name / "adapter_model.safetensors")
    merged = tmp_path / "merged"
    shutil.copytree(folder, merged)
    model.save_pretrained(merged)
    runner = runner_of(folder, engine, "text-matching")
    assert runner.card.adapter_tasks == ("retrieval", "text-matching")
    want = SentenceTransformer(str(merged), device="cpu").encode(TEXTS)
    assert greatest(embed(runner, TEXTS) - want) <= FP32_MAX_ABS_DIFF
