from __future__ import annotations

import pytest

from embedserve_runtime.cpu_split import CpuSplit, split_cpus

MICRO = 1e-6
CASES = {
    "a tokenizer that takes little leaves all cores to the engine": ((2, 2 * MICRO, 200 * MICRO, 1), (2, 0)),
    "a quarter of the work gets a quarter of the cores": ((16, 1 * MICRO, 3 * MICRO, 8), (12, 4)),
    "no more cores than processes that tokenise": ((16, 1 * MICRO, 3 * MICRO, 1), (15, 1)),
    "the nearest number of whole cores": ((4, 3 * MICRO, 5 * MICRO, 4), (2, 2)),
    "one core stays with the engine": ((4, 99 * MICRO, 1 * MICRO, 64), (1, 3)),
    "one core is shared": ((1, 9 * MICRO, 1 * MICRO, 4), (1, 0)),
    "nothing was measured": ((4, 0.0, 0.0, 4), (4, 0)),
}


@pytest.mark.parametrize(("asked", "want"), CASES.values(), ids=CASES.keys())
def test_cores_are_split_by_the_measured_share(
    asked: tuple[int, float, float, int], want: tuple[int, int]
) -> None:
    cpus, tokenizing, engine, processes = asked
    split = split_cpus(cpus, tokenizing=tokenizing, engine=engine, processes=processes)
    assert (split.engine, split.around) == want
    assert split.engine + split.around == cpus


def test_the_share_is_told() -> None:
    assert split_cpus(4, tokenizing=1.0, engine=3.0, processes=1) == CpuSplit(4, 3, 1, 0.25)
