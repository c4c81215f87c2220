"""Weights as torch pickles, `pytorch_model.bin`: read by torch alone, and only where it is installed.

`weights_only` lets torch rebuild tensors and nothing else, so that no code in the file is run.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import is_zipfile

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from embedserve_runtime.errors import ModelInvalid
from embedserve_runtime.model.files import check_lfs_pointer

if TYPE_CHECKING:
    import torch

ADVICE = (
    "a pickle is read only where torch is installed, as in the CUDA image: use that, or save the model as safetensors "
    "(`model.save_pretrained(folder)` of a current transformers)"
)


def can_read() -> bool:
    return find_spec("torch") is not None


def read_pickle(path: Path) -> dict[str, NDArray[np.generic]]:
    """Read the tensors of a pickle by name, mapped from the file where its format allows it. Raises ModelInvalid."""
    import torch

    try:
        # Only files that are zip archives can be mapped; torch wrote others until 1.6.
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zipfile(path))
    except Exception as error:  # whatever a foreign file makes of the unpickler
        check_lfs_pointer(path)
        raise ModelInvalid(
            f"{path} is not a pickle of tensors that torch reads: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(loaded, dict):
        raise ModelInvalid(f"{path} holds a {type(loaded).__name__}, not tensors by name")
    return {name: _to_array(value) for name, value in loaded.items() if isinstance(value, torch.Tensor)}


def _to_array(tensor: torch.Tensor) -> NDArray[np.generic]:
    import torch

    if tensor.dtype is torch.bfloat16:
        halves: NDArray[np.generic] = tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return halves
    array: NDArray[np.generic] = tensor.numpy()
    return array
