"""A small Hugging Face compatible server for tests: it speaks what ``huggingface_hub`` asks of the real one.

Standard library only, so that its image needs nothing but Python.
"""

from e2e.hub.access import Access
from e2e.hub.faults import Fault, FaultKind, Faults
from e2e.hub.server import HubServer

__all__ = ["Access", "Fault", "FaultKind", "Faults", "HubServer"]
