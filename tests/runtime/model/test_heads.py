"""The task that a folder is for, its labels and its score function: config.json and the sentence-transformers files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from embedserve_runtime.config import ModelSettings
from embedserve_runtime.errors import ConfigError, EmbedserveError, ModelInvalid, UnsupportedArchitecture
from embedserve_runtime.model import families
from embedserve_runtime.model.folder import read_model
from embedserve_runtime.model.heads.classifiers import CLASSIFIERS
from embedserve_runtime.model.heads.description import ClassifierHead, Head, ScoreFunction, Task
from embedserve_runtime.model.heads.reading import read_head
from embedserve_runtime.model.modules import read_layout

Config = dict[str, object]

BERT: Config = {
    "model_type": "bert",
    "architectures": ["BertForSequenceClassification"],
    "vocab_size": 97,
    "hidden_size": 36,
    "num_hidden_layers": 1,
    "num_attention_heads": 3,
    "intermediate_size": 50,
    "max_position_embeddings": 40,
}
ONE: Config = {"id2label": {"0": "relevant"}}
THREE: Config = {"id2label": {"0": "bad", "1": "so so", "2": "good"}}
SIGMOID, IDENTITY, SOFTMAX = (
    "torch.nn.modules.activation.Sigmoid",
    "torch.nn.modules.linear.Identity",
    "torch.nn.modules.activation.Softmax",
)
POOLING = "sentence_transformers.models.Pooling"
SPLADE = "sentence_transformers.sparse_encoder.models.SpladePooling"


def read(
    folder: Path,
    config: Config,
    task_setting: str = "auto",
    cross_encoder: Config | None = None,
    modules: tuple[str, ...] = (),
) -> tuple[Task, Head | None]:
    (folder / "config.json").write_text(json.dumps(BERT | config))
    if cross_encoder is not None:
        (folder / "config_sentence_transformers.json").write_text(json.dumps(cross_encoder))
    if modules:
        listed = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
        for number, name in enumerate(modules, 1):
            listed.append({"idx": number, "name": str(number), "path": f"{number}", "type": name})
            (folder / f"{number}").mkdir()
            (folder / f"{number}" / "config.json").write_text(
                '{"pooling_mode": "mean"}' if name == POOLING else "{}"
            )
        (folder / "modules.json").write_text(json.dumps(listed))
    reading = read_model(folder)
    settings = ModelSettings.model_validate({"source": str(folder), "task": task_setting})
    layout = read_layout(reading.files, reading.routes.entries)
    return read_head(reading.files, families.describe(reading.files), layout, settings)


def classifier(folder: Path, config: Config, cross_encoder: Config | None = None) -> ClassifierHead:
    head = read(folder, config, cross_encoder=cross_encoder)[1]
    assert isinstance(head, ClassifierHead)
    return head


LABELS: dict[str, tuple[Config, tuple[str, ...]]] = {
    "in order": (THREE, ("bad", "so so", "good")),
    "named out of order": ({"id2label": {"2": "c", "0": "a", "1": "b"}}, ("a", "b", "c")),
    "ten and more, by number": (
        {"id2label": {str(number): f"l{number}" for number in (*range(9, -1, -1), 11, 10)}},
        tuple(f"l{number}" for number in range(12)),
    ),
    "left out, as transformers leaves its default out": ({}, ("LABEL_0", "LABEL_1")),
    "only their number": ({"num_labels": 4}, ("LABEL_0", "LABEL_1", "LABEL_2", "LABEL_3")),
    "names before the number": ({"num_labels": 2} | THREE, ("bad", "so so", "good")),
}


@pytest.mark.parametrize(("config", "want_labels"), LABELS.values(), ids=LABELS.keys())
def test_labels_are_in_the_order_of_the_logits(
    tmp_path: Path, config: Config, want_labels: tuple[str, ...]
) -> None:
    head = classifier(tmp_path, config)
    assert head.labels == want_labels
    assert head.layers[-1].out_features == len(want_labels)


def test_only_a_classifier_that_reads_the_last_token_passes_over_padding(tmp_path: Path) -> None:
    assert classifier(tmp_path, {"pad_token_id": 3}).padding is None
    decoder = {
        "model_type": "llama",
        "architectures": ["LlamaForSequenceClassification"],
        "num_key_value_heads": 3,
    }
    assert classifier(tmp_path, decoder | {"pad_token_id": 3}).padding == 3
    assert classifier(tmp_path, decoder).padding is None


@pytest.mark.parametrize("id2label", [{"1": "a", "2": "b"}, {"0": "a", "2": "b"}, {}], ids=str)
def test_labels_with_a_gap_are_refused(tmp_path: Path, id2label: Config) -> None:
    with pytest.raises(ModelInvalid, match="id2label"):
        classifier(tmp_path, {"id2label": id2label})


# Each is config.json, config_sentence_transformers.json, and the function wanted.
FUNCTIONS: dict[str, tuple[Config, Config | None, ScoreFunction]] = {
    "one label": (ONE, None, ScoreFunction.SIGMOID),
    "one label, called a regression": (ONE | {"problem_type": "regression"}, None, ScoreFunction.SIGMOID),
    "several labels": (THREE, None, ScoreFunction.SOFTMAX),
    "one of several": (
        THREE | {"problem_type": "single_label_classification"},
        None,
        ScoreFunction.SOFTMAX,
    ),
    "any of several": (
        THREE | {"problem_type": "multi_label_classification"},
        None,
        ScoreFunction.SIGMOID,
    ),
    "several numbers": (THREE | {"problem_type": "regression"}, None, ScoreFunction.IDENTITY),
    "a cross-encoder's own": (ONE, {"activation_fn": IDENTITY}, ScoreFunction.IDENTITY),
    "in config.json, sentence-transformers 4": (
        ONE | {"sentence_transformers": {"activation_fn": IDENTITY, "version": "4.1.0"}},
        None,
        ScoreFunction.IDENTITY,
    ),
    "in config.json, before": (
        ONE | {"sbert_ce_default_activation_function": IDENTITY},
        None,
        ScoreFunction.IDENTITY,
    ),
    "the newest location wins": (
        ONE
        | {
            "sentence_transformers": {"activation_fn": IDENTITY},
            "sbert_ce_default_activation_function": SOFTMAX,
        },
        {"activation_fn": SIGMOID},
        ScoreFunction.SIGMOID,
    ),
    "before the kind of problem": (
        THREE | {"problem_type": "multi_label_classification"},
        {"activation_fn": SOFTMAX},
        ScoreFunction.SOFTMAX,
    ),
}


@pytest.mark.parametrize(("config", "cross_encoder", "want"), FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_the_score_function_is_the_cross_encoders_or_that_of_the_kind_of_problem(
    tmp_path: Path, config: Config, cross_encoder: Config | None, want: ScoreFunction
) -> None:
    assert classifier(tmp_path, config, cross_encoder).scores is want


# Each is the architectures, what is asked for, the modules, and the task wanted.
TASKS: dict[str, tuple[list[str] | None, str, tuple[str, ...], Task]] = {
    "one label": (["BertForSequenceClassification"], "auto", (), Task.RERANK),
    "one label, asked to classify": (["BertForSequenceClassification"], "classify", (), Task.CLASSIFY),
    "one label, asked to rerank": (["BertForSequenceClassification"], "rerank", (), Task.RERANK),
    "a bare encoder": (["BertModel"], "auto", (), Task.EMBED),
    "no architecture": (None, "auto", (), Task.EMBED),
    "a masked LM alone": (["BertForMaskedLM"], "auto", (), Task.EMBED),
    "a masked LM, asked for sparse vectors": (["BertForMaskedLM"], "sparse", (), Task.SPARSE),
    "modules that pool": (["BertForSequenceClassification"], "auto", (POOLING,), Task.EMBED),
    "a module that makes sparse vectors": (["BertForMaskedLM"], "auto", (SPLADE,), Task.SPARSE),
    "asked to embed": (["BertForQuestionAnswering"], "embed", (), Task.EMBED),
    "weights of tokens beside dense vectors": (
        ["BertModel", "BertForTokenClassification"],
        "auto",
        (),
        Task.EMBED,
    ),
}


@pytest.mark.parametrize(
    ("architectures", "task_setting", "modules", "want"), TASKS.values(), ids=TASKS.keys()
)
def test_the_task_is_what_is_asked_for_or_what_the_files_say(
    tmp_path: Path, architectures: list[str] | None, task_setting: str, modules: tuple[str, ...], want: Task
) -> None:
    task, head = read(tmp_path, ONE | {"architectures": architectures}, task_setting, modules=modules)
    assert task is want
    assert (head is None) == (want is Task.EMBED)


# Each is config.json, what is asked for, the error, and a part of its message.
REFUSED: dict[str, tuple[Config, str, type[EmbedserveError], str]] = {
    "another head": (
        {"architectures": ["BertForQuestionAnswering"]},
        "auto",
        UnsupportedArchitecture,
        "BertForQuestionAnswering",
    ),
    "an unknown classifier": (
        {"architectures": ["ErnieForSequenceClassification"]},
        "auto",
        UnsupportedArchitecture,
        "ErnieForSequenceClassification",
    ),
    "an unknown problem": (
        THREE | {"problem_type": "ordinal"},
        "auto",
        UnsupportedArchitecture,
        "problem_type = 'ordinal'",
    ),
    "an unknown function": (
        ONE | {"sbert_ce_default_activation_function": "my.Function"},
        "auto",
        UnsupportedArchitecture,
        "my.Function",
    ),
    "several labels for a reranker": (THREE, "rerank", ConfigError, "has 3"),
    "no classifier to classify with": (
        {"architectures": ["BertModel"]},
        "classify",
        ConfigError,
        "BertModel",
    ),
    "no masked LM for sparse vectors": (
        {"architectures": ["BertModel"]},
        "sparse",
        UnsupportedArchitecture,
        "BertModel",
    ),
}


@pytest.mark.parametrize(("config", "task_setting", "error", "named"), REFUSED.values(), ids=REFUSED.keys())
def test_a_head_that_cannot_be_served_is_refused_by_name(
    tmp_path: Path, config: Config, task_setting: str, error: type[EmbedserveError], named: str
) -> None:
    with pytest.raises(error) as refusal:
        read(tmp_path, config, task_setting)
    assert named in str(refusal.value)


def test_the_refusal_of_a_classifier_lists_those_that_are_known(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedArchitecture) as refusal:
        read(tmp_path, {"architectures": ["ErnieForSequenceClassification"]})
    for name in CLASSIFIERS:
        assert f"{name}ForSequenceClassification" in refusal.value.message
