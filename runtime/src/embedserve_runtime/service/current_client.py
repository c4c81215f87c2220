"""The client whose request runs in the present task.

It is a context variable, as a request's trace is: every dialect would have to hand it through all its functions, and
none of them has anything to say about it.
"""

from __future__ import annotations

from contextvars import ContextVar

from embedserve_runtime.scheduling.clients import Client

current_client: ContextVar[Client | None] = ContextVar("current_client", default=None)
"""Set where the API key is checked; None where clients are not told apart."""
