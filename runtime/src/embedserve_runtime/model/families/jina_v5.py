"""jina-embeddings-v5-text: EuroBERT (nano) or Qwen3 (small) under one `model_type`, with an adapter for each task.

Source: `JinaEmbeddingsV5Model` and `custom_st.Transformer` beside the weights, which pool the last token and normalize
whatever modules.json says; which encoder it is, `is_decoder` says, as in vLLM. Adapters: `task_adapters`.
"""

from __future__ import annotations

from embedserve_runtime.model.architecture import Encoder
from embedserve_runtime.model.families import llama, qwen
from embedserve_runtime.model.files import FileModel, ModelFile

MODEL_TYPE = "jina_embeddings_v5"


class _JinaV5DetectionConfig(FileModel):
    is_decoder: bool = True


def describe(file: ModelFile) -> Encoder:
    """Describe the encoder of `file`, a config.json. Raises ModelInvalid or UnsupportedArchitecture."""
    if file.parse(_JinaV5DetectionConfig).is_decoder:
        qwen_config = file.parse(qwen.QwenConfig)
        # Causal as Qwen3 is: the class of the repository's own adds nothing but adapters.
        return qwen.describe_config(
            file.path, qwen_config.model_copy(update={"model_type": "qwen3", "is_causal": True})
        )
    llama_config = file.parse(llama.LlamaConfig)
    return llama.describe_config(file.path, llama_config.model_copy(update={"model_type": "eurobert"}))
