"""Finds the class of transformers that reads a folder's tokenizer.

Source: `AutoTokenizer` of transformers 4.57.6, with code of the repository's own trusted: `auto_map`, else
`tokenizer_class` of tokenizer_config.json, else that of config.json, else what belongs to the `model_type`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from embedserve_runtime.model.files import ModelFiles
from embedserve_runtime.model.hf_files.tokenizers import TOKENIZER_CONFIG_FILE, TokenizerConfig
from embedserve_runtime.model.hf_files.transformers import CONFIG_FILE, TokenizerClassConfig

FAST = "Fast"
# Stands before the name of a class in the repository's own code, which may be any of the library's names too.
OWN_CODE = "."
# Of the model types that this project or an export of it runs, and of those with a BERT's or a Llama's tokenizer.
_MODEL_TYPES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "AlbertTokenizer": ("albert",),
        "BartTokenizer": ("bart",),
        "BertTokenizer": ("bert", "ernie", "megatron-bert", "nezha", "qdqbert", "visual_bert"),
        "CamembertTokenizer": ("camembert",),
        "CodeLlamaTokenizer": ("code_llama",),
        "CohereTokenizer": ("cohere", "cohere2"),
        "ConvBertTokenizer": ("convbert",),
        "DebertaTokenizer": ("deberta",),
        "DebertaV2Tokenizer": ("deberta-v2",),
        "DistilBertTokenizer": ("distilbert",),
        "ElectraTokenizer": ("electra",),
        "FunnelTokenizer": ("funnel",),
        "GPT2Tokenizer": ("gpt2", "gpt_neo", "gptj", "opt"),
        "GPTNeoXTokenizer": ("gpt_neox", "olmo", "olmo2"),
        "GemmaTokenizer": ("gemma", "gemma2", "gemma3", "gemma3_text", "t5gemma"),
        "LayoutLMTokenizer": ("layoutlm",),
        "LlamaTokenizer": ("llama", "ministral", "mistral", "mixtral"),
        "LongformerTokenizer": ("longformer",),
        "LxmertTokenizer": ("lxmert",),
        "MPNetTokenizer": ("mpnet",),
        "MobileBertTokenizer": ("mobilebert",),
        "PreTrainedTokenizer": ("modernbert",),
        "Qwen2Tokenizer": ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe"),
        "RobertaTokenizer": ("data2vec-text", "ibert", "roberta", "roberta-prelayernorm"),
        "SplinterTokenizer": ("splinter",),
        "SqueezeBertTokenizer": ("squeezebert",),
        "T5Tokenizer": ("longt5", "mt5", "t5", "umt5"),
        "XLMRobertaTokenizer": ("xlm-roberta", "xlm-roberta-xl", "xmod"),
        "XLNetTokenizer": ("xlnet",),
    }
)
_CLASS_OF: Mapping[str, str] = MappingProxyType(
    {model_type: name for name, types in _MODEL_TYPES.items() for model_type in types}
)


def find_tokenizer_class(files: ModelFiles) -> str | None:
    """Return the name of the class without "Fast", that of a class in the repository's own code behind `OWN_CODE`; None
    where transformers 4 knows none. Raises ModelInvalid."""
    tokenizer = files.parse_if_there(TOKENIZER_CONFIG_FILE, TokenizerConfig, TokenizerConfig())
    config = files.parse_if_there(CONFIG_FILE, TokenizerClassConfig, TokenizerClassConfig())
    for file in (tokenizer, config):
        name = _find_own_code(file.auto_map) or file.tokenizer_class
        if name:
            return name.removesuffix(FAST)
    if config.auto_map:
        return None  # a configuration of the repository's own, which has no tokenizer class beside it
    return _CLASS_OF.get(config.model_type or "")


def _find_own_code(auto_map: object) -> str | None:
    """Return the class in the repository's own code, the fast one where there are two."""
    reference = auto_map.get("AutoTokenizer") if isinstance(auto_map, Mapping) else auto_map
    classes = (
        [name for name in reference if isinstance(name, str)] if isinstance(reference, list | tuple) else []
    )
    return OWN_CODE + classes[-1].rpartition(".")[2] if classes else None
