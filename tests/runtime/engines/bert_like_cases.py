"""Rows of the families that were encoders from the start, against transformers."""

from __future__ import annotations

from transformers import (
    AlbertConfig,
    AlbertModel,
    CamembertConfig,
    CamembertModel,
    DebertaV2Config,
    DebertaV2Model,
    DistilBertConfig,
    DistilBertModel,
    ElectraConfig,
    ElectraModel,
    GteConfig,
    GteModel,
    JinaEmbeddingsV3Config,
    JinaEmbeddingsV3Model,
    ModernBertConfig,
    ModernBertModel,
    MPNetConfig,
    MPNetModel,
    NomicBertConfig,
    NomicBertModel,
    RobertaConfig,
    RobertaModel,
    T5Config,
    T5EncoderModel,
    XLMRobertaConfig,
    XLMRobertaModel,
)

from tests.runtime.engines.case import model_case, rows_of

SHAPE = {"hidden_size": 36, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 50}
# RoBERTa's positions begin behind the padding index, so the table has more rows than the longest text has tokens.
ROBERTA_SHAPE = SHAPE | {"max_position_embeddings": 42, "pad_token_id": 1, "type_vocab_size": 1}

roberta = rows_of(RobertaModel, RobertaConfig, **ROBERTA_SHAPE)
xlm_roberta = rows_of(XLMRobertaModel, XLMRobertaConfig, **ROBERTA_SHAPE)
camembert = rows_of(CamembertModel, CamembertConfig, **ROBERTA_SHAPE)
distilbert = rows_of(
    DistilBertModel,
    DistilBertConfig,
    dim=36,
    n_layers=3,
    n_heads=3,
    hidden_dim=50,
    max_position_embeddings=40,
)
mpnet = rows_of(MPNetModel, MPNetConfig, **SHAPE, max_position_embeddings=42, pad_token_id=1)
modernbert = rows_of(
    ModernBertModel,
    ModernBertConfig,
    **SHAPE,
    max_position_embeddings=40,
    local_attention=10,
)
gte = rows_of(GteModel, GteConfig, **SHAPE, max_position_embeddings=40)
nomic = rows_of(NomicBertModel, NomicBertConfig, **SHAPE, max_position_embeddings=40)
deberta = rows_of(
    DebertaV2Model,
    DebertaV2Config,
    **SHAPE,
    max_position_embeddings=40,
    relative_attention=True,
    pos_att_type=["c2p", "p2c"],
)
electra = rows_of(ElectraModel, ElectraConfig, **SHAPE, max_position_embeddings=40)
albert = rows_of(AlbertModel, AlbertConfig, **SHAPE, max_position_embeddings=40)
t5 = rows_of(
    T5EncoderModel,
    T5Config,
    d_model=36,
    d_kv=8,
    d_ff=50,
    num_layers=3,
    num_heads=3,
    n_positions=40,
    relative_attention_num_buckets=8,
    relative_attention_max_distance=20,
)
jina_v3 = rows_of(
    JinaEmbeddingsV3Model, JinaEmbeddingsV3Config, **SHAPE, max_position_embeddings=40, pad_token_id=1
)

BERT_LIKE = (
    roberta("roberta, odd heads"),
    roberta("roberta, small heads, tanh gelu", hidden_act="gelu_new", num_attention_heads=9),
    roberta(
        "roberta, one layer, large epsilon", num_hidden_layers=1, layer_norm_eps=0.1, num_attention_heads=1
    ),
    xlm_roberta("xlm-roberta, odd heads"),
    xlm_roberta("xlm-roberta, two token types, relu", type_vocab_size=2, hidden_act="relu"),
    model_case(
        XLMRobertaModel,
        XLMRobertaConfig,
        "xlm-roberta, padding 4",
        **ROBERTA_SHAPE | {"pad_token_id": 4, "max_position_embeddings": 45},
        ids=range(5, 97),
    ),
    camembert("camembert, relu", hidden_act="relu"),
    camembert("camembert, one head, large epsilon", num_attention_heads=1, layer_norm_eps=0.1),
    camembert("camembert, small heads, one layer", num_attention_heads=9, num_hidden_layers=1),
    distilbert("distilbert, odd heads"),
    distilbert("distilbert, one layer, relu", n_layers=1, n_heads=9, activation="relu"),
    distilbert("distilbert, sinusoidal positions", sinusoidal_pos_embds=True, n_heads=1),
    mpnet("mpnet, odd heads"),
    mpnet("mpnet, small heads, tanh gelu", hidden_act="gelu_new", num_attention_heads=9),
    mpnet("mpnet, large epsilon, relu", layer_norm_eps=0.1, hidden_act="relu", num_attention_heads=1),
    modernbert("modernbert, window of 5"),
    modernbert(
        "modernbert, all biases, global every two",
        global_attn_every_n_layers=2,
        norm_bias=True,
        attention_bias=True,
        mlp_bias=True,
        num_attention_heads=9,
    ),
    modernbert(
        "modernbert, types of layers named, equal bases, silu",
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": 500.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
        },
        hidden_activation="silu",
    ),
    modernbert("modernbert, all global", global_attn_every_n_layers=1, num_hidden_layers=2),
    gte("gte, odd heads"),
    gte("gte, no token types", type_vocab_size=0, num_attention_heads=9, hidden_act="gelu_new"),
    gte(
        "gte, linear scaling, large epsilon",
        rope_parameters={"rope_type": "linear", "factor": 3.0, "rope_theta": 100.0},
        layer_norm_eps=0.1,
        type_vocab_size=2,
    ),
    nomic("nomic, odd heads"),
    nomic("nomic, gelu, other base", hidden_act="gelu", rope_parameters={"rope_theta": 50.0}),
    nomic("nomic, small heads, one layer", num_attention_heads=9, num_hidden_layers=1, type_vocab_size=1),
    deberta("deberta, both terms"),
    deberta(
        "deberta, v3",
        position_buckets=6,
        share_att_key=True,
        norm_rel_ebd="layer_norm",
        position_biased_input=False,
    ),
    deberta("deberta, one term", pos_att_type=["p2c"], max_relative_positions=7, type_vocab_size=2),
    deberta("deberta, the other term", pos_att_type="c2p", position_buckets=4, num_attention_heads=1),
    deberta("deberta, no relative positions", relative_attention=False, num_attention_heads=9),
    deberta("deberta, convolution, tanh", conv_kernel_size=3),
    deberta(
        "deberta, wide convolution, own words' width",
        conv_kernel_size=5,
        conv_act="gelu",
        embedding_size=20,
        type_vocab_size=2,
        num_hidden_layers=1,
    ),
    deberta(
        "deberta, own words' width, v3", embedding_size=50, share_att_key=True, position_biased_input=False
    ),
    electra("electra, narrow words", embedding_size=20),
    electra("electra, words as wide as the layers", embedding_size=36, num_attention_heads=9),
    electra("electra, wide words, relu, one type", embedding_size=50, hidden_act="relu", type_vocab_size=1),
    albert("albert, narrow words", embedding_size=20),
    albert(
        "albert, wide words, nine heads, one type",
        embedding_size=50,
        num_attention_heads=9,
        type_vocab_size=1,
    ),
    albert("albert, one layer, large epsilon", embedding_size=20, num_hidden_layers=1, layer_norm_eps=0.1),
    t5("t5, relu"),
    t5("t5, gated, tanh gelu", feed_forward_proj="gated-gelu", relative_attention_num_buckets=32),
    t5(
        "t5, gated silu, one head, large epsilon",
        feed_forward_proj="gated-silu",
        num_heads=1,
        layer_norm_epsilon=0.1,
    ),
    jina_v3("jina_embeddings_v3, odd heads"),
    jina_v3(
        "jina_embeddings_v3, other base, two types", rope_parameters={"rope_theta": 50.0}, type_vocab_size=2
    ),
    jina_v3("jina_embeddings_v3, nine heads, tanh gelu", num_attention_heads=9, hidden_act="gelu_new"),
)
