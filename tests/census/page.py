"""Writes docs/census.md: `python -m tests.census.page`. What the page says of a repository, the runtime says of a small
folder of its kind; a test finds the page stale."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.census.kinds import Verdict, build_kind, judge_kind
from tests.census.outside import Pair
from tests.census.repositories import (
    MAX_PARAMETERS_ON_CPU_M,
    Kind,
    Repository,
    list_kinds,
    read_repositories,
)

PAGE = Path(__file__).parents[2] / "docs" / "census.md"


class Outcome(StrEnum):
    """The one word for a row."""

    EXACT = "exact"
    GPU = "exact, needs a GPU"
    EXPORT = "by `convert`"
    REFUSED = "refused"
    WRONG = "taken for something else"
    UNKNOWN = "unknown"


MEANINGS: Mapping[Outcome, str] = {
    Outcome.EXACT: "served; both engines match what it is compared with, within 1e-4 in float32",
    Outcome.GPU: f"the same, but has more than {MAX_PARAMETERS_ON_CPU_M:,} million parameters (16 GB in float32)",
    Outcome.EXPORT: "refused, unless [`embedserve convert`](conversion.md) exports it with torch and transformers",
    Outcome.REFUSED: "refused at start, with the message in the table",
    Outcome.WRONG: "served as another kind of model: set `model.task`, or do not serve it",
    Outcome.UNKNOWN: "its model type is not known",
}
TASKS = {
    "dense": "Dense vectors",
    "several": "Several outputs",
    "rerank": "Rerankers",
    "sparse": "Sparse vectors",
    "late-interaction": "A vector for each token",
    "static": "Tables",
}
HEAD = """\
# Repositories

<!-- Written by `python -m tests.census.page`; the rows are in tests/census/repositories.csv. -->

Whether {count} popular repositories can be served. The table was made without the repositories' weights. For each
*kind* of repository (its task, its encoder, and what follows the encoder) the tests write a small folder with the same
files, keys and shapes and random weights. The runtime reads it as it would at start, and if it serves the model, both
engines are compared with a loader: with transformers 5, and, in its older layout, with the loader that the authors
recommend and transformers 4. `make census-online` does the same with the repositories themselves.

| | repositories | |
|---|---|---|
"""
NOTE = """
If a name is in *italics*, its model type was not read from the repository. The second column is the kind; the last one
is what the kind is compared with, or the message with which it is refused.
"""
COMPARED_HEAD = """
## What they are compared with

| compared with | repositories |
|---|---|
"""
REASONS_HEAD = """
These kinds are not compared with the recommended loader and transformers 4:

| kind | loader | why |
|---|---|---|
"""
# By what `Built.loader` names: how it is written on the page.
NEWEST = "{loader} (transformers 5)"
BY_THE_TESTS: Mapping[str, str] = {
    "a forward pass of the tests'": "a forward pass written for the tests",
    "the model's page": "the code on the model's page (transformers 5)",
    "transformers, with peft's formula": "sentence-transformers (transformers 5), adapters merged by peft's formula",
    "the formulas of FlagEmbedding": "the formulas of FlagEmbedding (transformers 5)",
    "model2vec": "model2vec",
}


def judge_kinds() -> Mapping[Kind, Verdict]:
    """Build every kind and read it."""
    verdicts = {}
    for kind in list_kinds():
        with TemporaryDirectory() as folder:
            verdicts[kind] = judge_kind(build_kind(kind, Path(folder)))
    return verdicts


def choose_outcome(repository: Repository, verdict: Verdict) -> Outcome:
    if repository.kind.encoder == "unknown":
        return Outcome.UNKNOWN
    if verdict.refusal:
        return Outcome.EXPORT if verdict.can_be_exported else Outcome.REFUSED
    if verdict.taken_for:
        return Outcome.WRONG
    return Outcome.GPU if repository.needs_gpu else Outcome.EXACT


def describe_comparison(repository: Repository, verdict: Verdict) -> str:
    """Return the loaders that a repository's kind is compared with: the recommended one first."""
    newest = BY_THE_TESTS.get(verdict.loader) or NEWEST.format(loader=verdict.loader)
    pair = Pair(repository.kind, repository.loader)
    if pair.reason or not pair.runs_outside:
        return newest
    if pair.loader == verdict.loader:
        return f"{pair.loader} (transformers 5 and 4)"
    return f"{pair.loader} (transformers 4); {newest}"


def render(verdicts: Mapping[Kind, Verdict]) -> str:
    """The page."""
    repositories = read_repositories()
    outcomes = {one.name: choose_outcome(one, verdicts[one.kind]) for one in repositories}
    counts = Counter(outcomes.values())
    page = HEAD.format(count=len(repositories))
    page += "".join(
        f"| {outcome} | {counts[outcome]} | {MEANINGS[outcome]} |\n" for outcome in Outcome if counts[outcome]
    )
    page += NOTE
    for task, title in TASKS.items():
        page += f"\n## {title}\n\n| repository | kind | | compared with, or message |\n|---|---|---|---|\n"
        for one in repositories:
            if one.kind.task == task:
                page += _render_row(one, outcomes[one.name], verdicts[one.kind])
    return page + _render_comparisons(verdicts)


def _render_comparisons(verdicts: Mapping[Kind, Verdict]) -> str:
    served = [one for one in read_repositories() if verdicts[one.kind].is_served]
    counts = Counter(describe_comparison(one, verdicts[one.kind]) for one in served)
    page = COMPARED_HEAD
    page += "".join(f"| {compared} | {count} |\n" for compared, count in counts.most_common())
    pairs = dict.fromkeys(Pair(one.kind, one.loader) for one in served)
    page += REASONS_HEAD
    page += "".join(f"| {pair.kind} | {pair.loader} | {pair.reason} |\n" for pair in pairs if pair.reason)
    return page


def _render_row(repository: Repository, outcome: Outcome, verdict: Verdict) -> str:
    name = repository.name if repository.is_confirmed else f"*{repository.name}*"
    kind = f"{repository.kind.encoder}, {repository.kind.behind}"
    words = verdict.refusal or (f"taken for: {verdict.taken_for}" if verdict.taken_for else "")
    words = words or describe_comparison(repository, verdict)
    return f"| {name} | {kind} | {outcome} | {words.replace('|', '/')} |\n"


if __name__ == "__main__":
    PAGE.write_text(render(judge_kinds()))
