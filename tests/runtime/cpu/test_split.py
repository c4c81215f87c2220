from __future__ import annotations

import pytest

from embedserve_runtime.cpu.split import MAX_FRONT_ENDS, CpuSplit, choose_front_end_count, split_cpus

MICRO = 1e-6
CASES = {
    "a tokenizer that takes little leaves all cores to the engine": ((2, 2 * MICRO, 200 * MICRO, 1), (2, 0)),
    "a quarter of the work gets a quarter of the cores": ((16, 1 * MICRO, 3 * MICRO, 8), (12, 4)),
    "no more cores than processes that tokenize": ((16, 1 * MICRO, 3 * MICRO, 1), (15, 1)),
    "the nearest number of whole cores": ((4, 3 * MICRO, 5 * MICRO, 4), (2, 2)),
    "one core stays with the engine": ((4, 99 * MICRO, 1 * MICRO, 64), (1, 3)),
    "one core is shared": ((1, 9 * MICRO, 1 * MICRO, 4), (1, 0)),
    "nothing was measured": ((4, 0.0, 0.0, 4), (4, 0)),
}


@pytest.mark.parametrize(("measured", "want"), CASES.values(), ids=CASES.keys())
def test_cores_are_split_by_the_measured_share(
    measured: tuple[int, float, float, int], want: tuple[int, int]
) -> None:
    cpus, tokenizing, engine, processes = measured
    split = split_cpus(cpus, tokenizing=tokenizing, engine=engine, processes=processes)
    assert (split.engine, split.around) == want
    assert split.engine + split.around == cpus


def test_the_share_is_told() -> None:
    assert split_cpus(4, tokenizing=1.0, engine=3.0, processes=1) == CpuSplit(4, 3, 1, 0.25)


# Cores, microseconds around the engine a token, its tokens a second, its threads.
FRONT_ENDS = {
    "one core has one process": ((1, 100.0, 1e6, 1), 1),
    "two cores have one process, however much there is to do": ((2, 100.0, 1e6, 2), 1),
    "a slow engine on many cores needs no more than its own": ((16, 2.0, 40e3, 16), 1),
    "a fast engine shares the cores": ((16, 2.0, 2e6, 16), 3),
    "a share of less than one and a half cores is one process": ((8, 2.0, 750e3, 8), 1),
    "most of the work, and one core is left for the engine": ((4, 100.0, 1e6, 4), 3),
    "a device gets as many as keep it busy": ((16, 2.0, 2.4e6, None), 5),
    "a device is fed by one where that is enough": ((16, 2.0, 400e3, None), 1),
    "its host thread keeps a core": ((4, 2.0, 2.4e6, None), 3),
    "many cores": ((256, 2.0, 1e9, None), MAX_FRONT_ENDS),
    "nothing was measured": ((16, 0.0, 1e6, 16), 1),
}


@pytest.mark.parametrize(("measured", "want"), FRONT_ENDS.values(), ids=FRONT_ENDS.keys())
def test_front_ends_are_as_many_as_the_engine_needs(
    measured: tuple[int, float, float, int | None], want: int
) -> None:
    cpus, around, rate, threads = measured
    assert choose_front_end_count(cpus, around=around * MICRO, rate=rate, threads=threads) == want
