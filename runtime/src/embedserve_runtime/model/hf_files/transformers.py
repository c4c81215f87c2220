"""The files of transformers that every model has: what config.json says a model is, and the index of its weights."""

from __future__ import annotations

from embedserve_runtime.model.files import FileModel

CONFIG_FILE = "config.json"


class ModelTypeConfig(FileModel):
    """The keys of config.json that say which model it is. architectures: classes that it was saved from."""

    model_type: str = ""
    architectures: list[str] | None = None


class TokenizerClassConfig(FileModel):
    """The keys of config.json that name a tokenizer class, where tokenizer_config.json does not."""

    model_type: str | None = None
    tokenizer_class: str | None = None
    auto_map: object = None


class WeightsIndex(FileModel):
    """model.safetensors.index.json and pytorch_model.bin.index.json: the file of each tensor."""

    weight_map: dict[str, str]
