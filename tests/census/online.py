"""The census with the repositories themselves: `make census-online`, where a hub can be reached (HF_ENDPOINT).

Each repository is fetched by the runtime's own client, read, and, where it is served and small enough for a CPU, run
on both engines beside sentence-transformers. What was found goes into a file with the commit, which a later run asks
for: the same model gives the same identity and vectors, or somebody wants to know why.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from sentence_transformers import SentenceTransformer

from embedserve_runtime.config import ModelSettings, load_config
from embedserve_runtime.errors import EmbedserveError
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.loading.runners import load_runner
from embedserve_runtime.model.heads.description import Task
from embedserve_runtime.model.reading import read_card
from embedserve_runtime.sources.opening import LocatedModel, open_model
from tests.census.kinds import ENGINES
from tests.census.repositories import Repository, read_repositories
from tests.runtime.heads.head_runner import greatest
from tests.runtime.pipelines.folders import TEXTS, embed

RECORD = Path(__file__).with_name("online.json")
# Of each vector: enough to see that it has changed.
RECORDED_NUMBERS = 8


@dataclass(frozen=True, slots=True)
class Found:
    """What was found of one repository. refusal: the runtime's words, empty where it is served. difference: the
    greatest one between an engine's vectors and the loader's. vectors: the beginnings of those of `TEXTS`."""

    commit: str = ""
    refusal: str = ""
    task: str = ""
    vector_space: str = ""
    difference: float | None = None
    vectors: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Hub:
    """store: the folder that models are fetched into. endpoint: None for HF_ENDPOINT or the real hub."""

    store: Path
    endpoint: str | None = None


def survey(repository: Repository, commit: str | None, hub: Hub) -> Found:
    """Fetch, read and run one repository. commit: None for the newest."""
    settings = ModelSettings(
        source=repository.name,
        commit=commit,
        revision=commit or "main",
        endpoint=hub.endpoint,
        store=hub.store,
    )
    try:
        located = open_model(settings)
        card = read_card(located.folder, located.revision, settings)
    except EmbedserveError as error:
        return Found(commit=commit or "", refusal=error.message)
    found = Found(located.revision, task=str(card.task), vector_space=card.vector_space)
    if card.task is not Task.EMBED or repository.needs_gpu:
        return found
    vectors = [_embed(located, engine) for engine in ENGINES]
    want: FloatArray = SentenceTransformer(str(located.folder), device="cpu").encode(TEXTS)
    return Found(
        found.commit,
        task=found.task,
        vector_space=found.vector_space,
        difference=max(greatest(one - want) for one in vectors),
        vectors=tuple(tuple(round(float(x), 5) for x in row[:RECORDED_NUMBERS]) for row in vectors[0]),
    )


def _embed(located: LocatedModel, engine: str) -> FloatArray:
    flags = {"model": {"source": str(located.folder)}, "engine": {"kind": engine}}
    return embed(load_runner(load_config(flags=flags)), TEXTS)


def survey_all(repositories: Iterable[Repository], record: Path, hub: Hub) -> Mapping[str, Found]:
    """Survey one after another and write each into the record at once, so that a run that is cut has not been in vain.

    Returns those whose identity or words differ from the record's.
    """
    before = json.loads(record.read_text()) if record.exists() else {}
    changed: dict[str, Found] = {}
    for repository in repositories:
        known = before.get(repository.name, {})
        found = survey(repository, known.get("commit") or None, hub)
        if known and any(known[key] != getattr(found, key) for key in ("vector_space", "refusal")):
            changed[repository.name] = found
        before[repository.name] = asdict(found)
        record.write_text(json.dumps(before, indent=1, sort_keys=True) + "\n")
        print(
            f"{repository.name}: {found.refusal or found.vector_space} {found.difference or ''}", flush=True
        )
    return changed


def main() -> int:
    """Survey the repositories that are named, else all; 1 where one is not what it was."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="repositories; without any, all of the table")
    parser.add_argument("--store", type=Path, default=Path.home() / ".cache" / "embedserve" / "census")
    parser.add_argument("--record", type=Path, default=RECORD)
    asked = parser.parse_args()
    repositories = [one for one in read_repositories() if not asked.names or one.name in asked.names]
    return 1 if survey_all(repositories, asked.record, Hub(asked.store)) else 0


if __name__ == "__main__":
    raise SystemExit(main())
