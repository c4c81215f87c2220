"""Model types that are known and not run: why, by `model_type` of config.json."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_IMAGES = "it reads images beside text, and its vectors are made to be compared with those of images"
_SOUND = "it reads sound, and this server takes text"
# Nothing of these is exported either: what torch would export is not the part that reads text, not all of it, or not
# what the repository's own code computes.
OTHER_INPUTS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                "align",
                "altclip",
                "blip",
                "blip-2",
                "chinese_clip",
                "clip",
                "clip_text_model",
                "colmodernvbert",
                "colpali",
                "colqwen2",
                "gemma3",
                "idefics3",
                "jina_clip",
                "jina_embeddings_v4",
                "llama_nemotron_vl",
                "llava",
                "llava_next",
                "metaclip_2",
                "mllama",
                "paligemma",
                "qwen2_5_vl",
                "qwen2_vl",
                "qwen3_vl",
                "siglip",
                "siglip2",
                "siglip_text_model",
                "vit",
            ),
            _IMAGES,
        ),
        **dict.fromkeys(
            (
                "clap",
                "hubert",
                "qwen2_audio",
                "seamless_m4t",
                "wav2vec2",
                "wavlm",
                "whisper",
            ),
            _SOUND,
        ),
        "lfm2": (
            "most of its layers are convolutions with gates instead of attention, and its embedding models run "
            "them in both directions by code of their own"
        ),
        "qwen3_5": "it reads images beside text, and most of its layers have no attention but a recurrent state",
    }
)
# Text models whose layers are outside of what both engines compute.
OTHER_LAYERS: Mapping[str, str] = MappingProxyType(
    {
        "cost_wise_gemma": "it merges tokens between its layers and has a score for each layer",
        "deberta": "its products and positions are those of DeBERTa v1, which deberta-v2 has changed",
        "ernie": "it has a table of task types, and no file says which type a text has",
        "minicpm": "it scales its residuals, and its rerankers have a score for each layer",
        "nvembed": "its vectors come from a layer of learned queries that config.json alone does not describe",
        "t5gemma2": "its result is the decoder's, and this server does not decode",
        "xmod": "the language of a text chooses its adapters, and requests do not state the language",
    }
)
