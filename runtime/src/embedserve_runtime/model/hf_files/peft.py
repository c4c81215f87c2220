"""adapter_config.json, which peft writes beside an adapter's weights."""

from __future__ import annotations

from pydantic import Field, PositiveFloat, PositiveInt

from embedserve_runtime.model.files import FileModel

ADAPTER_CONFIG_FILE = "adapter_config.json"


class LoraConfig(FileModel):
    """The keys that decide what an adapter changes, with the defaults of peft."""

    peft_type: str
    base_model_name_or_path: str | None = None
    r: PositiveInt = 8
    lora_alpha: PositiveFloat = 8.0
    use_rslora: bool = False
    rank_pattern: dict[str, PositiveInt] = Field(default_factory=dict)
    alpha_pattern: dict[str, PositiveFloat] = Field(default_factory=dict)
    init_lora_weights: bool | str | None = True
