"""Decisions of the torch engine about a device, without touching it: layouts, buckets, dtype."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch

from embedserve_runtime.engines.torch.device_batch import Capacity, DeviceBatch, copy_in, copy_to_device
from embedserve_runtime.engines.torch.devices import choose_devices, choose_dtype
from embedserve_runtime.engines.torch.graphs import MAX_TOKENS, choose_buckets, find_bucket
from embedserve_runtime.errors import ConfigError
from embedserve_runtime.forward.batch import PackedBatch, TokenSequence


def batch_of(*lengths: int) -> PackedBatch:
    ids = np.arange(1, sum(lengths) + 1, dtype=np.int32)
    return PackedBatch.pack(np.split(ids, np.cumsum(lengths)[:-1]))


def lengths_of(parts: list[PackedBatch]) -> list[list[int]]:
    return [part.lengths.tolist() for part in parts]


@pytest.mark.parametrize(
    ("capability", "want"),
    [
        pytest.param(None, torch.float32, id="a CPU"),
        pytest.param((7, 5), torch.float16, id="Turing"),
        pytest.param((8, 0), torch.bfloat16, id="Ampere"),
        pytest.param((12, 1), torch.bfloat16, id="Blackwell"),
    ],
)
def test_the_dtype_is_the_widest_that_the_device_runs_at_full_speed(
    capability: tuple[int, int] | None, want: torch.dtype
) -> None:
    assert choose_dtype(capability) is want


@pytest.mark.parametrize(
    ("devices", "gpus", "want"),
    [
        pytest.param("auto", 0, ["cpu"], id="auto without a GPU"),
        pytest.param("auto", 3, ["cuda:0", "cuda:1", "cuda:2"], id="auto takes all"),
        pytest.param(2, 3, ["cuda:0", "cuda:1"], id="some of them"),
        pytest.param(1, 0, ["cpu"], id="one without a GPU"),
    ],
)
def test_an_engine_goes_on_each_device_that_is_asked_for(
    devices: int | Literal["auto"], gpus: int, want: list[str]
) -> None:
    assert [str(device) for device in choose_devices(devices, gpus)] == want


def test_the_kind_of_device_takes_gpus_or_leaves_them_alone() -> None:
    assert [str(device) for device in choose_devices("auto", 2, "cuda")] == ["cuda:0", "cuda:1"]
    assert [str(device) for device in choose_devices("auto", 2, "cpu")] == ["cpu"]
    with pytest.raises(ConfigError, match=r"engine\.device: cuda is asked for, torch sees no CUDA device"):
        choose_devices("auto", 0, "cuda")
    with pytest.raises(ConfigError, match=r"engine\.devices: 2 are asked for, and engine\.device is cpu"):
        choose_devices(2, 2, "cpu")


@pytest.mark.parametrize("gpus", [0, 1])
def test_more_devices_than_there_are_stop_the_start(gpus: int) -> None:
    with pytest.raises(ConfigError, match=f"2 are asked for, torch sees {gpus} CUDA devices"):
        choose_devices(2, gpus)


def test_a_layout_holds_the_batch_and_makes_sequences_of_one_token_of_what_is_left_over() -> None:
    typed = TokenSequence(
        np.array([7, 8, 9], dtype=np.int32), np.array([0, 1, 1], dtype=np.int32), pool_start=2
    )
    batch = PackedBatch.pack([np.array([5], dtype=np.int32), typed])
    capacity = Capacity(6, 3)
    storage = torch.full((capacity.integers,), -1, dtype=torch.int32)
    copy_in(batch, capacity, storage)
    laid = DeviceBatch.view_storage(storage, capacity)
    assert laid.ids.tolist() == [5, 7, 8, 9, 0, 0]
    assert laid.types.tolist() == [0, 0, 1, 1, 0, 0]
    assert laid.starts.tolist() == [0, 1, 1, 1, 4, 5]
    assert laid.ends.tolist() == [1, 4, 4, 4, 5, 6]
    assert laid.firsts.tolist() == [0, 3, 0]
    assert laid.lasts.tolist() == [1, 4, 0]
    assert laid.origins.tolist() == [0, 1, 0]
    own = copy_to_device(batch, torch.device("cpu"))
    for name in ("ids", "types", "starts", "ends", "sequence_of", "firsts", "lasts", "origins"):
        assert getattr(laid.trim(4, 2), name).tolist() == getattr(own, name).tolist(), name


def test_a_batch_takes_the_smallest_bucket_with_room_for_its_tokens_and_sequences() -> None:
    among = choose_buckets(2**31)
    assert [capacity.tokens for capacity in among] == sorted({capacity.tokens for capacity in among})
    for batch in (batch_of(1), batch_of(16), batch_of(17), batch_of(*[1] * 100), batch_of(400, 300)):
        number = find_bucket(batch, among)
        assert number is not None
        fits = [c.tokens >= batch.tokens and c.sequences >= len(batch.lengths) for c in among]
        assert number == fits.index(True)
    assert find_bucket(batch_of(MAX_TOKENS + 1), among) is None
    assert find_bucket(batch_of(*[1] * MAX_TOKENS), among) is None


def test_no_bucket_is_much_larger_than_the_largest_batch() -> None:
    assert [bucket.tokens for bucket in choose_buckets(40)] == [16, 24, 32, 48]
