"""Bounds the number of forms of each Triton kernel that a start compiles.

Triton compiles a kernel anew for each set of its compile-time arguments. One that depends on the size of a batch would
make a start take minutes, or never end; so forms are counted, and too many end the start with the kernel's name.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from embedserve_runtime.errors import EngineFailure

log = logging.getLogger(__name__)

# Of one kernel. Encoders with layers of one shape make at most some ten, for all sizes of batches.
MAX_FORMS = 200


class CompiledKernel(Protocol):
    """A compiled function, as Triton reports it."""

    @property
    def name(self) -> str: ...


class FormCounter:
    """Counts compiled forms: Triton's hook after a compilation, whether the compiler ran or its folder had the form."""

    def __init__(self, max_forms: int) -> None:
        self.forms: Counter[str] = Counter()
        self._max_forms = max_forms

    def __call__(self, *, fn: CompiledKernel, **_: object) -> None:
        """Count a form. Raises EngineFailure where there are too many of one kernel."""
        self.forms[fn.name] += 1
        if self.forms[fn.name] > self._max_forms:
            raise EngineFailure(
                f"kernel {fn.name} was compiled in more than {self._max_forms} forms: something that changes with the "
                "batch is compiled into it. Please report it; engine.attention: varlen runs without our kernels"
            )


@contextmanager
def count_forms(max_forms: int = MAX_FORMS) -> Iterator[FormCounter]:
    """Count the specializations that Triton compiles inside this context.

    Raises EngineFailure where one kernel has more than `max_forms`.
    """
    import triton

    runtime, counter = triton.knobs.runtime, FormCounter(max_forms)
    before = runtime.jit_post_compile_hook
    runtime.jit_post_compile_hook = counter
    try:
        yield counter
    finally:
        runtime.jit_post_compile_hook = before
    counts = dict(counter.forms.most_common())
    log.info("forms of kernels, compiled or found", extra={"forms": counter.forms.total(), "kernels": counts})
