"""Finds the devices that torch has here, and chooses those that are used."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch

from embedserve_runtime.errors import ConfigError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


DeviceKind = Literal["auto", "cpu", "cuda"]


def find_devices(requested: int | Literal["auto"], kind: DeviceKind) -> list[torch.device]:
    """Return the devices of this machine to run on, by the rules of `choose_devices`."""
    return choose_devices(requested, torch.cuda.device_count() if torch.cuda.is_available() else 0, kind)


def choose_devices(
    requested: int | Literal["auto"], gpus: int, kind: DeviceKind = "auto"
) -> list[torch.device]:
    """Return the devices to run on.

    requested: how many; `auto` takes every GPU, or the CPU where there is none. gpus: how many there are. kind: `cpu`
    takes none of them, `cuda` nothing else. Raises ConfigError when there are not as many as asked for.
    """
    if kind == "cuda" and not gpus:
        raise ConfigError(
            "engine.device: cuda is asked for, torch sees no CUDA device; give the process one, or set it to auto"
        )
    if kind == "cpu":
        if requested not in ("auto", 1):
            raise ConfigError(
                f"engine.devices: {requested} are asked for, and engine.device is cpu; set one of them to auto"
            )
        return [torch.device("cpu")]
    if requested != "auto" and requested > max(gpus, 1):
        raise ConfigError(
            f"engine.devices: {requested} are asked for, torch sees {gpus} CUDA devices; "
            "give the pod as many, or set it to auto"
        )
    count = gpus if requested == "auto" else min(requested, gpus)
    return [torch.device("cuda", number) for number in range(count)] or [torch.device("cpu")]


def use_device(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which what names no device is meant for this one."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def get_device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def limit_threads(threads: int) -> None:
    """Set the compute threads of the process on the CPU."""
    torch.set_num_threads(threads)


def resolve_dtype(precision: str, device: torch.device) -> torch.dtype:
    """Return the dtype of a precision, the name of a dtype or `auto`."""
    if precision != "auto":
        return DTYPES[precision]
    return choose_dtype(torch.cuda.get_device_capability(device) if device.type == "cuda" else None)


def choose_dtype(capability: tuple[int, int] | None) -> torch.dtype:
    """Choose the dtype for a device of that CUDA compute capability, None for a CPU."""
    if capability is None:
        return torch.float32
    # Turing has float16 units only; from Ampere on bfloat16 costs the same and cannot overflow.
    return torch.bfloat16 if capability >= (8, 0) else torch.float16
