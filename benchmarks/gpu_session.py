"""All that needs a card, in a fixed order, within a time: tests first that have never run, then rates, then the rest.

    python -m benchmarks.gpu_session [--minutes 25] [--results FOLDER] [--only WORD] [--again]

Every step is a command of its own with a limit. What it prints goes to the screen and to `<results>/gpu-session.log`
line by line, and how it ended to `gpu-session.json` at once: a run that is cut keeps what it has, and the next one goes
on behind the steps that have ended (`--again`: from the beginning). A step that no longer fits is named as not run.
Exits with 1 unless every step has ended with 0.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from benchmarks.command_line import add_selection, parser_of

MIN_SECONDS = 20


@dataclass(frozen=True, slots=True)
class Step:
    """arguments: behind `python -m`. limit: seconds after which it is ended. RESULTS stands for the folder."""

    name: str
    arguments: tuple[str, ...]
    limit: int


RESULTS = "{results}"
TESTS = "tests/runtime/engines"
STEPS: tuple[Step, ...] = (
    Step("8-bit", ("pytest", "-q", "--durations=5", f"{TESTS}/test_cuda_loading.py"), 240),
    Step(
        "routes",
        (
            "pytest",
            "-q",
            *(f"{TESTS}/test_cuda_{name}.py" for name in ("routes", "streams", "token_weights")),
        ),
        180,
    ),
    Step("rates", ("benchmarks.gpu", "--seconds", "1", "--results", RESULTS), 300),
    Step("server", ("benchmarks.gpu_serving", "--seconds", "4"), 150),
    Step("cosines", ("benchmarks.gpu_cosines", "--results", RESULTS), 100),
    Step("outputs", ("benchmarks.outputs", "--device", "cuda", "--texts", "256"), 100),
    Step("peers", ("benchmarks.gpu_peers",), 120),
    Step("replicas", ("benchmarks.gpu_replicas",), 60),
    Step("profile", ("benchmarks.gpu_profile",), 60),
    Step(
        "tests",
        ("pytest", "-q", "--maxfail=20", f"{TESTS}/test_cuda_products.py", f"{TESTS}/test_cuda.py"),
        420,
    ),
)


@dataclass(frozen=True, slots=True)
class End:
    """How a step ended. code: its exit code, None where it was ended at its limit."""

    code: int | None
    seconds: float


def left_to_do(steps: Sequence[Step], ended: Mapping[str, End], only: str) -> list[Step]:
    """In their order. A step that reached its limit, or failed, is not tried again by itself."""
    return [step for step in steps if only in step.name and step.name not in ended]


def seconds_for(step: Step, remaining: float) -> float | None:
    """What the step may take, None where it no longer fits."""
    return min(step.limit, remaining) if remaining >= MIN_SECONDS else None


def run(step: Step, results: Path, limit: float) -> End:
    arguments = [argument.replace(RESULTS, str(results)) for argument in step.arguments]
    started = time.monotonic()
    with (results / "gpu-session.log").open("a") as log:
        _tell(f"== {step.name}: python -m {' '.join(arguments)} (at most {limit:.0f} s)\n", log)
        command = [sys.executable, "-u", "-m", *arguments]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            at_limit = threading.Event()
            timer = threading.Timer(limit, _end, [process, at_limit])
            timer.start()
            assert process.stdout is not None  # it is a pipe
            for line in process.stdout:
                _tell(line, log)
            code = process.wait()
            timer.cancel()
        end = End(None if at_limit.is_set() else code, round(time.monotonic() - started, 1))
        how = "ended at its limit" if end.code is None else f"exit code {end.code}"
        _tell(f"== {step.name}: {how}\n", log)
    return end


def _end(process: subprocess.Popen[str], at_limit: threading.Event) -> None:
    at_limit.set()
    process.kill()


def _tell(line: str, log: TextIO) -> None:
    for stream in (sys.stdout, log):
        stream.write(line)
        stream.flush()


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--minutes", type=float, default=25.0, help="of all steps together")
    add_selection(parser, "steps")
    parser.add_argument("--again", action="store_true", help="steps that have ended too")
    options = parser.parse_args()
    options.results.mkdir(parents=True, exist_ok=True)
    state, until = options.results / "gpu-session.json", time.monotonic() + 60 * options.minutes
    ended: dict[str, End] = {}
    if state.exists() and not options.again:
        ended = {name: End(**end) for name, end in json.loads(state.read_text()).items()}
    for step in left_to_do(STEPS, ended, options.only):
        limit = seconds_for(step, until - time.monotonic())
        if limit is None:
            print(f"== {step.name}: not run, the time is over")
            continue
        ended[step.name] = run(step, options.results, limit)
        state.write_text(json.dumps({name: asdict(end) for name, end in ended.items()}, indent=1) + "\n")
    for step in STEPS:
        end = ended.get(step.name)
        told = "not run" if end is None else f"exit code {end.code}, {end.seconds} s"
        print(f"{step.name:10} {told}")
    return 0 if all(step.name in ended and ended[step.name].code == 0 for step in STEPS) else 1


if __name__ == "__main__":
    sys.exit(main())
