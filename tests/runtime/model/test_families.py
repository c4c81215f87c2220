"""Families read config.json as transformers 4, transformers 5 and repositories with code of their own save it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import CONFIG_MAPPING, AutoConfig

from embedserve_runtime.errors import UnsupportedArchitecture, UnsupportedInputs
from embedserve_runtime.model import families
from embedserve_runtime.model.activations import Activation
from embedserve_runtime.model.architecture import Encoder, Experts, Mlp
from embedserve_runtime.model.exports import needs_export
from embedserve_runtime.model.families.refused import OTHER_INPUTS, OTHER_LAYERS
from embedserve_runtime.model.folder import read_folder, read_model

Config = dict[str, object]

BERT: Config = {
    "vocab_size": 97,
    "hidden_size": 36,
    "num_hidden_layers": 4,
    "num_attention_heads": 3,
    "intermediate_size": 50,
    "max_position_embeddings": 40,
}
DECODER = BERT | {"num_attention_heads": 6, "num_key_value_heads": 3}
DISTILBERT: Config = {
    "model_type": "distilbert",
    "vocab_size": 97,
    "dim": 36,
    "n_layers": 1,
    "n_heads": 3,
    "hidden_dim": 50,
    "max_position_embeddings": 40,
}
T5: Config = {
    "model_type": "t5",
    "vocab_size": 97,
    "d_model": 36,
    "d_kv": 8,
    "d_ff": 50,
    "num_layers": 2,
    "num_heads": 3,
}
MODERNBERT = BERT | {"model_type": "modernbert", "local_attention": 10}
GEMMA2 = DECODER | {"model_type": "gemma2", "head_dim": 10, "sliding_window": 6}
GEMMA = DECODER | {"model_type": "gemma3_text", "head_dim": 10, "sliding_window": 6}
NOMIC: Config = {
    "model_type": "nomic_bert",
    "n_embd": 36,
    "n_head": 3,
    "n_layer": 4,
    "n_inner": 256,
    "n_positions": 40,
    "vocab_size": 97,
    "activation_function": "swiglu",
    "layer_norm_epsilon": 1e-12,
    "qkv_proj_bias": False,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "type_vocab_size": 2,
}
MIXTURE = NOMIC | {
    "activation_function": "gelu",
    "num_experts": 8,
    "moe_top_k": 2,
    "moe_every_n_layers": 2,
}
JINA = BERT | {
    "model_type": "bert",
    "architectures": ["JinaBertForMaskedLM"],
    "position_embedding_type": "alibi",
}
JINA_CODE = JINA | {
    "auto_map": {"AutoModel": "jinaai/jina-bert-v2-qk-post-norm--modeling_bert.JinaBertModel"}
}
FULL, LOCAL = "full_attention", "sliding_attention"


def describe(folder: Path, config: Config) -> Encoder:
    (folder / "config.json").write_text(json.dumps(config))
    return families.describe(read_folder(folder))


# name: (as transformers 4 or the repository's own code saves it, as transformers 5 does)
PAIRS: dict[str, tuple[Config, Config]] = {
    # position_embedding_type is a key of transformers 4 only.
    "bert": (
        BERT | {"model_type": "bert", "position_embedding_type": "absolute", "hidden_act": "gelu"},
        BERT | {"model_type": "bert", "is_decoder": False, "add_cross_attention": False},
    ),
    "roberta": (
        BERT | {"model_type": "roberta", "position_embedding_type": "absolute", "pad_token_id": 1},
        BERT | {"model_type": "roberta", "pad_token_id": 1, "is_decoder": False},
    ),
    "xlm-roberta, padding left out": (
        BERT | {"model_type": "xlm-roberta", "output_past": True},
        BERT | {"model_type": "xlm-roberta", "pad_token_id": 1},
    ),
    "camembert": (
        BERT | {"model_type": "camembert", "position_embedding_type": "absolute", "pad_token_id": 1},
        BERT | {"model_type": "camembert", "pad_token_id": 1},
    ),
    "distilbert": (
        DISTILBERT | {"tie_weights_": True, "sinusoidal_pos_embds": True},
        DISTILBERT | {"tie_word_embeddings": True, "sinusoidal_pos_embds": False},
    ),
    "mpnet": (
        BERT | {"model_type": "mpnet", "relative_attention_num_buckets": 32},
        BERT | {"model_type": "mpnet"},
    ),
    "deberta": (
        BERT
        | {
            "model_type": "deberta-v2",
            "relative_attention": True,
            "position_buckets": 8,
            "pos_att_type": "p2c|c2p",
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "attention_head_size": 12,
            "conv_kernel_size": 0,
        },
        BERT
        | {
            "model_type": "deberta-v2",
            "relative_attention": True,
            "max_relative_positions": -1,
            "position_buckets": 8,
            "pos_att_type": ["p2c", "c2p"],
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "legacy": True,
        },
    ),
    "jina, from its own code": (JINA, JINA | {"is_decoder": False, "emb_pooler": "mean"}),
    "llama_bidirec": (
        DECODER | {"model_type": "llama_bidirec", "rope_theta": 500.0, "rope_scaling": None},
        DECODER | {"model_type": "llama_bidirec", "rope_parameters": {"rope_theta": 500.0}},
    ),
    "modernbert": (
        MODERNBERT | {"global_attn_every_n_layers": 2, "global_rope_theta": 500.0, "local_rope_theta": 50.0},
        MODERNBERT
        | {
            "layer_types": [FULL, LOCAL, FULL, LOCAL],
            "rope_parameters": {
                FULL: {"rope_type": "default", "rope_theta": 500.0},
                LOCAL: {"rope_type": "default", "rope_theta": 50.0},
            },
        },
    ),
    "modernbert without a local base": (
        MODERNBERT | {"global_rope_theta": 500.0, "local_rope_theta": None},
        MODERNBERT | {"rope_parameters": {FULL: {"rope_theta": 500.0}, LOCAL: {"rope_theta": 500.0}}},
    ),
    "gte": (
        BERT | {"model_type": "new", "rope_theta": 500.0, "rope_scaling": None, "type_vocab_size": 1},
        BERT
        | {
            "model_type": "gte",
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
            "type_vocab_size": 1,
        },
    ),
    "nomic": (
        NOMIC,
        BERT
        | {
            "model_type": "nomic_bert",
            "intermediate_size": 256,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
        },
    ),
    "qwen2": (
        DECODER
        | {"model_type": "qwen2", "rope_theta": 1e6, "rope_scaling": {"type": "linear", "factor": 2.0}},
        DECODER
        | {
            "model_type": "qwen2",
            "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6},
            "layer_types": [FULL] * 4,
            "sliding_window": None,
        },
    ),
    "qwen3 with a window": (
        DECODER
        | {
            "model_type": "qwen3",
            "head_dim": 10,
            "rope_theta": 1e6,
            "use_sliding_window": True,
            "sliding_window": 6,
            "max_window_layers": 3,
        },
        DECODER
        | {
            "model_type": "qwen3",
            "head_dim": 10,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
            "use_sliding_window": True,
            "sliding_window": 6,
            "layer_types": [FULL, FULL, FULL, LOCAL],
        },
    ),
    "mistral": (
        DECODER | {"model_type": "mistral", "rope_theta": 1e6, "sliding_window": 6},
        DECODER | {"model_type": "mistral", "rope_parameters": {"rope_theta": 1e6}, "sliding_window": 6},
    ),
    "llama": (
        DECODER | {"model_type": "llama", "rope_theta": 500.0, "rope_scaling": None},
        DECODER | {"model_type": "llama", "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    ),
    "gemma": (
        DECODER | {"model_type": "gemma", "head_dim": 10, "hidden_act": "gelu", "rope_theta": 500.0},
        DECODER
        | {
            "model_type": "gemma",
            "head_dim": 10,
            "hidden_act": "gelu_pytorch_tanh",
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
    ),
    "gemma2": (
        GEMMA2 | {"rope_theta": 500.0, "cache_implementation": "hybrid"},
        GEMMA2
        | {
            "layer_types": [LOCAL, FULL, LOCAL, FULL],
            "attn_logit_softcapping": 50.0,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
    ),
    "gemma3": (
        GEMMA
        | {
            "sliding_window_pattern": 2,
            "rope_theta": 500.0,
            "rope_local_base_freq": 50.0,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
        GEMMA
        | {
            "layer_types": [LOCAL, FULL, LOCAL, FULL],
            "rope_parameters": {
                FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 500.0},
                LOCAL: {"rope_type": "default", "rope_theta": 50.0},
            },
        },
    ),
}


@pytest.mark.parametrize(("old", "new"), PAIRS.values(), ids=PAIRS.keys())
def test_both_ways_to_save_a_config_give_the_same_encoder(tmp_path: Path, old: Config, new: Config) -> None:
    of_4 = old | {"torch_dtype": "float16", "transformers_version": "4.57.1"}
    of_5 = new | {"dtype": "float16", "transformers_version": "5.0.0"}
    assert describe(tmp_path, of_4) == describe(tmp_path, of_5)


# What transformers itself reads. Left out: families that it has no class for, and a ModernBERT without a local base,
# of which transformers 5 makes a config without any, that no model can be built from.
NOT_READ_BY_TRANSFORMERS = {"nomic", "jina, from its own code", "modernbert without a local base"}
READ_BY_TRANSFORMERS = {
    name: old
    for name, (old, _) in PAIRS.items()
    if old["model_type"] in CONFIG_MAPPING and name not in NOT_READ_BY_TRANSFORMERS
}


@pytest.mark.parametrize("old", READ_BY_TRANSFORMERS.values(), ids=READ_BY_TRANSFORMERS.keys())
def test_a_config_that_transformers_reads_and_saves_again_gives_the_same_encoder(
    tmp_path: Path, old: Config
) -> None:
    want = describe(tmp_path, old | {"pad_token_id": 1})
    AutoConfig.from_pretrained(tmp_path).save_pretrained(tmp_path)
    saved_config = json.loads((tmp_path / "config.json").read_text())
    assert str(saved_config["transformers_version"]).startswith("5.")
    assert families.describe(read_folder(tmp_path)) == want


# name: (config, the field that the message must name)
REFUSED: dict[str, tuple[Config, str]] = {
    "mpnet, buckets": (
        BERT | {"model_type": "mpnet", "relative_attention_num_buckets": 8},
        "relative_attention_num_buckets = 8",
    ),
    "distilbert, activation": (
        DISTILBERT | {"activation": "mish"},
        "activation = 'mish'",
    ),
    "modernbert, type of layer": (MODERNBERT | {"layer_types": ["linear_attention"] * 4}, "layer_types"),
    "modernbert, too few types": (MODERNBERT | {"layer_types": [FULL]}, "layer_types"),
    "new, kind of norm": (BERT | {"model_type": "new", "layer_norm_type": "rms_norm"}, "layer_norm_type"),
    "new, kind of positions": (
        BERT | {"model_type": "new", "position_embedding_type": "absolute"},
        "position_embedding_type",
    ),
    "new, logarithmic scale": (
        BERT | {"model_type": "new", "logn_attention_scale": True},
        "logn_attention_scale",
    ),
    "nomic, experts in transformers' spelling": (
        BERT | {"model_type": "nomic_bert", "num_experts": 8},
        "num_experts = 8",
    ),
    "nomic, gated experts": (MIXTURE | {"activation_function": "swiglu"}, "activation_function = 'swiglu'"),
    "nomic, shares that sum to one": (
        MIXTURE | {"moe_normalize_expert_weights": True},
        "moe_normalize_expert_weights = True",
    ),
    "nomic, experts that choose": (MIXTURE | {"expert_choice_router": True}, "expert_choice_router = True"),
    "nomic, experts for all": (MIXTURE | {"num_shared_experts": 1}, "num_shared_experts = 1"),
    "nomic, divided experts": (MIXTURE | {"ffn_div": 2}, "ffn_div = 2"),
    "nomic, more chosen than there are": (MIXTURE | {"moe_top_k": 9}, "moe_top_k = 9"),
    "nomic, no scale": (NOMIC | {"scale_attn_weights": False}, "scale_attn_weights = False"),
    "nomic, norms first": (NOMIC | {"prenorm": True}, "prenorm = True"),
    "nomic, interleaved": (NOMIC | {"rotary_emb_interleaved": True}, "rotary_emb_interleaved"),
    "nomic, xPos": (NOMIC | {"rotary_emb_scale_base": 512}, "rotary_emb_scale_base"),
    "nomic, absolute positions": (NOMIC | {"rotary_emb_fraction": 0.0}, "rotary_emb_fraction"),
    "nomic, sigmoid gate": (NOMIC | {"activation_function": "glu"}, "activation_function = 'glu'"),
    "qwen2, window without size": (
        DECODER | {"model_type": "qwen2", "layer_types": [LOCAL] * 4},
        "layer_types",
    ),
    "qwen2, code of its own": (
        DECODER | {"model_type": "qwen2", "auto_map": {"AutoModel": "modeling.Bidirectional"}},
        "auto_map",
    ),
    "llama, heads": (DECODER | {"model_type": "llama", "num_key_value_heads": 4}, "num_key_value_heads = 4"),
    "llama, scaling": (DECODER | {"model_type": "llama", "rope_scaling": {"type": "longrope"}}, "longrope"),
    "mistral, types of layers": (
        DECODER | {"model_type": "mistral", "layer_types": [LOCAL] * 4},
        "layer_types",
    ),
    "gemma3, soft cap": (GEMMA | {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0"),
    "gemma3, no window": (GEMMA | {"sliding_window": None}, "sliding_window"),
    "deberta, even convolution": (
        BERT | {"model_type": "deberta-v2", "conv_kernel_size": 4},
        "conv_kernel_size = 4",
    ),
    "deberta, convolution in groups": (
        BERT | {"model_type": "deberta-v2", "conv_kernel_size": 3, "conv_groups": 2},
        "conv_groups = 2",
    ),
    "deberta, activation of the convolution": (
        BERT | {"model_type": "deberta-v2", "conv_kernel_size": 3, "conv_act": "mish"},
        "conv_act = 'mish'",
    ),
    "deberta, size of heads": (
        BERT | {"model_type": "deberta-v2", "attention_head_size": 8},
        "attention_head_size = 8",
    ),
    "deberta, unknown term": (BERT | {"model_type": "deberta-v2", "pos_att_type": "p2p|c2p"}, "pos_att_type"),
    "deberta, unknown norm": (
        BERT
        | {
            "model_type": "deberta-v2",
            "relative_attention": True,
            "pos_att_type": ["c2p"],
            "norm_rel_ebd": "group_norm",
        },
        "norm_rel_ebd",
    ),
    "jina, positions": (JINA | {"position_embedding_type": "absolute"}, "position_embedding_type"),
    "jina, kind of MLP": (JINA | {"feed_forward_type": "original"}, "feed_forward_type = 'original'"),
    "jina code without norms": (JINA_CODE | {"use_qk_norm": False}, "use_qk_norm"),
    "jina's code of xlm-roberta, positions": (
        BERT
        | {
            "model_type": "xlm-roberta",
            "auto_map": {"AutoConfig": "configuration_xlm_roberta.XLMRobertaFlashConfig"},
            "position_embedding_type": "alibi",
        },
        "position_embedding_type = 'alibi'",
    ),
    "albert, several groups": (
        BERT | {"model_type": "albert", "num_hidden_groups": 2},
        "num_hidden_groups = 2",
    ),
    "albert, words as wide as the layers": (
        BERT | {"model_type": "albert", "embedding_size": BERT["hidden_size"]},
        "embedding_size",
    ),
    "t5, gate": (T5 | {"feed_forward_proj": "open-gelu"}, "feed_forward_proj = 'open-gelu'"),
    "t5, activation": (T5 | {"feed_forward_proj": "gated-mish"}, "feed_forward_proj = 'mish'"),
    "gemma, another activation in the older key": (
        DECODER | {"model_type": "gemma", "head_dim": 10, "hidden_activation": "relu"},
        "hidden_activation = 'relu'",
    ),
    "gemma2, no window": (GEMMA2 | {"sliding_window": None}, "sliding_window"),
    "gemma2, both ways for some": (
        GEMMA2 | {"use_bidirectional_attention": True},
        "use_bidirectional_attention = True without is_causal = false",
    ),
    "unknown": (BERT | {"model_type": "reformer"}, "model_type 'reformer'"),
}


@pytest.mark.parametrize(("config", "named"), REFUSED.values(), ids=REFUSED.keys())
def test_what_would_change_the_vectors_and_is_not_there_is_refused_by_file_and_field(
    tmp_path: Path, config: Config, named: str
) -> None:
    with pytest.raises(UnsupportedArchitecture) as refusal:
        describe(tmp_path, config)
    assert str(tmp_path / "config.json") in refusal.value.message
    assert named in refusal.value.message


@pytest.mark.parametrize(("model_type", "why"), OTHER_INPUTS.items(), ids=OTHER_INPUTS.keys())
def test_a_model_that_reads_more_than_text_is_refused_with_a_reason_and_not_exported(
    tmp_path: Path, model_type: str, why: str
) -> None:
    with pytest.raises(UnsupportedInputs, match=f"model_type '{model_type}' is not supported: {why}"):
        describe(tmp_path, {"model_type": model_type})
    reading = read_model(tmp_path)
    assert not needs_export(reading.files, reading.routes, None)


def test_no_family_is_also_refused_by_name() -> None:
    assert not families.FAMILIES.keys() & {*OTHER_INPUTS, *OTHER_LAYERS}


@pytest.mark.parametrize("model_type", ["eurobert", "bidirectional_pplx_qwen3"])
def test_an_encoder_made_of_a_decoder_sees_both_ways_whatever_its_config_says(
    tmp_path: Path, model_type: str
) -> None:
    config = DECODER | {"model_type": model_type, "auto_map": {"AutoModel": "modeling.Model"}}
    assert not describe(tmp_path, config | {"is_causal": True}).layers[0].attention.causal


def test_a_causal_window_counts_the_token_itself_and_a_bidirectional_one_does_not(tmp_path: Path) -> None:
    mistral = DECODER | {"model_type": "mistral", "sliding_window": 6}
    assert describe(tmp_path, mistral).layers[0].attention.window == 5
    assert describe(tmp_path, mistral | {"is_causal": False}).layers[0].attention.window == 6


@pytest.mark.parametrize(
    ("sign", "want_causal"),
    [({}, True), ({"is_causal": False}, False), ({"use_bidirectional_attention": True}, False)],
)
@pytest.mark.parametrize("model_type", ["qwen2", "qwen3", "mistral", "llama"])
def test_a_decoder_is_causal_unless_its_config_says_otherwise(
    tmp_path: Path, model_type: str, sign: Config, want_causal: bool
) -> None:
    encoder = describe(tmp_path, DECODER | {"model_type": model_type} | sign)
    assert {layer.attention.causal for layer in encoder.layers} == {want_causal}


def test_llama_bidirec_is_bidirectional_whatever_code_its_repository_has(tmp_path: Path) -> None:
    config = DECODER | {
        "model_type": "llama_bidirec",
        "auto_map": {"AutoModel": "llama.LlamaBidirectionalModel"},
    }
    assert not describe(tmp_path, config).layers[0].attention.causal


def test_ministral3_takes_no_text_that_it_would_scale_by_position(tmp_path: Path) -> None:
    rotary = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 10, "rope_theta": 100.0}
    config = DECODER | {"model_type": "ministral3", "rope_parameters": rotary}
    encoder = describe(tmp_path, config)
    assert (encoder.max_positions, encoder.layers[0].attention.window) == (10, None)


def test_nomic_with_a_growing_base_takes_no_text_beyond_its_trained_positions(tmp_path: Path) -> None:
    config = NOMIC | {"n_positions": 8192, "max_trained_positions": 2048}
    plain = describe(tmp_path, config)
    assert (plain.max_positions, plain.ignored) == (8192, ())
    growing = describe(tmp_path, config | {"rotary_scaling_factor": 2})
    (notice,) = growing.ignored
    assert growing.max_positions == 2048
    assert notice.startswith("config.json: rotary_scaling_factor")
    assert "2048" in notice


def test_nomic_rounds_words_and_gated_widths_up_as_its_own_code_does(tmp_path: Path) -> None:
    encoder = describe(tmp_path, NOMIC | {"pad_vocab_size_multiple": 64, "n_inner": 300})
    assert encoder.embeddings.vocabulary == 128
    mlp = encoder.layers[0].mlp
    assert isinstance(mlp, Mlp)
    assert mlp.intermediate == 512


def test_nomic_turns_only_the_part_of_a_head_that_its_config_says(tmp_path: Path) -> None:
    rotary = describe(tmp_path, NOMIC | {"rotary_emb_fraction": 0.5}).layers[0].attention.rotary
    assert rotary is not None
    assert len(rotary.inverse_frequencies) == 3


def test_nomic_without_a_gate_has_a_plain_gelu(tmp_path: Path) -> None:
    mlp = describe(tmp_path, NOMIC | {"activation_function": "gelu"}).layers[0].mlp
    assert isinstance(mlp, Mlp)
    assert (mlp.gated, mlp.activation) == (False, Activation.GELU)


@pytest.mark.parametrize(
    ("every", "want_mixtures"), [(0, []), (1, []), (2, [1, 3]), (3, [1]), (8, [1])], ids=str
)
def test_nomic_has_a_mixture_in_the_second_of_every_n_layers(
    tmp_path: Path, every: int, want_mixtures: list[int]
) -> None:
    layers = describe(tmp_path, MIXTURE | {"moe_every_n_layers": every}).layers
    assert [number for number, layer in enumerate(layers) if isinstance(layer.mlp, Experts)] == want_mixtures


def test_new_scales_its_frequencies_by_ntk(tmp_path: Path) -> None:
    plain, scaled = (
        describe(tmp_path, BERT | {"model_type": "new", "rope_theta": 500.0, "rope_scaling": scaling})
        .layers[0]
        .attention.rotary
        for scaling in (None, {"type": "ntk", "factor": 8.0})
    )
    assert plain is not None
    assert scaled is not None
    # Equation (6): the base times 8, the frequencies divided by 8^(2 / 12).
    want = [500.0 ** (-i / 6) * 8.0 ** (-i / 6 - 1 / 6) for i in range(6)]
    assert scaled.inverse_frequencies == pytest.approx(want, rel=1e-6)


def test_a_config_that_says_bert_and_names_jina_code_is_a_jina(tmp_path: Path) -> None:
    assert describe(tmp_path, JINA).family == "jina-bert"
    assert describe(tmp_path, JINA_CODE).family == "jina-bert-code"
    assert describe(tmp_path, BERT | {"model_type": "bert"}).family == "bert"


def test_a_larger_absolute_table_of_roberta_begins_behind_its_padding(tmp_path: Path) -> None:
    encoder = describe(tmp_path, BERT | {"model_type": "xlm-roberta", "pad_token_id": 1})
    assert encoder.embeddings.positions is not None
    assert (encoder.embeddings.positions.offset, encoder.max_positions) == (2, 38)
