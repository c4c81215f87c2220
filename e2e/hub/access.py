"""Who may read what."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Access:
    """Gated repositories show their metadata to everyone and their files to ``readers`` only."""

    gated: frozenset[str] = frozenset()
    readers: frozenset[str] = frozenset()
    """Tokens of users that were let into every gated repository."""

    strangers: frozenset[str] = frozenset()
    """Valid tokens of users that were let into none."""

    def knows(self, token: str | None) -> bool:
        return token is None or token in self.readers or token in self.strangers

    def may_read_files(self, repository: str, token: str | None) -> bool:
        return repository not in self.gated or token in self.readers
