"""What conversion costs, what it gives, and how fast 8 bit is beside float32 on this processor.

    python -m benchmarks.conversion [--large] [--rounds N] [--json FILE]

Every conversion runs in a process of its own: seconds from its start to its end, imports and the trial of each variant
included, the trials' share beside, and the greatest resident size. The large model has 24 layers of 1,024 and random
weights (335 million numbers; 1.3 GB in float32): with --large only. Rates are of the engine with pooling, without a
server; all cases run in turn in every round, and the fastest round
counts, since a busy machine slows some of them. "of float32" is within a round, the median.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from subprocess import run
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from benchmarks.command_line import parser_of
from benchmarks.packing import log_uniform, random_batch
from embedserve_runtime.config import load_config
from embedserve_runtime.cpu.features import detect_instruction_set
from embedserve_runtime.cpu.quota import count_usable_cpus
from embedserve_runtime.forward.outputs import OutputKind
from embedserve_runtime.loading.runners import load_runner
from embedserve_runtime.model import families
from embedserve_runtime.model.folder import read_folder
from tests.support.models import minilm_folder

CASES = {
    "32 x 256 tokens": np.full(32, 256),
    "256 x 16 tokens": np.full(256, 16),
    "64 texts of 5 to 250 tokens": log_uniform(64, 5, 250),
    "1 x 12 tokens": np.full(1, 12),
}
LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
# Leaves the greatest resident size, in KiB, and seconds of CPU on standard error. The parent's memory counts in what
# the kernel tells of a child.
COMMAND = """
import re, sys, time
from pathlib import Path
from embedserve_runtime.commands.cli import main
code = main(sys.argv[1:])
peak = re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text()).group(1)
print(peak, time.process_time(), file=sys.stderr)
sys.exit(code)
"""


def large_model(folder: Path) -> Path:
    """A BERT-large with random weights, in float16 on disk."""
    sizes = {"vocab_size": 30_522, "max_position_embeddings": 512}
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"} | sizes | LARGE))
    shutil.copy(minilm_folder() / "tokenizer.json", folder)
    encoder = families.describe(read_folder(folder))
    sources, source = encoder.parameter_names.sources, np.random.default_rng(0)
    tensors = {}
    for one in encoder.parameters():
        values = source.standard_normal(one.shape, dtype=np.float32) * np.float32(0.05)
        if len(one.shape) == 1 and one.name.endswith("norm.weight"):
            values += 1
        tensors[sources[one.pattern][0].tensor.format(layer=one.layer)] = values.astype(np.float16)
    save_file(tensors, folder / "model.safetensors")
    return folder


def converted(model: Path, store: Path) -> Mapping[str, Any]:
    """Convert in a process of its own; prints and gives what it took."""
    size = sum(path.stat().st_size for path in model.glob("*.safetensors"))
    began = time.perf_counter()
    command = [sys.executable, "-c", COMMAND, "convert", "--model", str(model), "--store", str(store)]
    done = run(command, check=True, capture_output=True, text=True)
    seconds = time.perf_counter() - began
    peak, cpu = map(float, done.stderr.splitlines()[-1].split())
    result: Mapping[str, Any] = json.loads(done.stdout)["conversion"]
    stored = {
        variant["precision"]: sum(
            path.stat().st_size
            for path in (store / "artifacts" / result["artifact"] / variant["precision"]).glob("*")
        )
        for variant in result["variants"]
    }
    logged = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    (phases,) = (line["seconds"] for line in logged if "seconds" in line)
    trials = sum(value for phase, value in phases.items() if phase.startswith("trying"))
    print(
        f"{model.name}: {seconds:.1f} s ({cpu:.1f} s of CPU), {peak / 1024:.0f} MiB at the highest; "
        f"{size / 1e6:.0f} MB on disk, stored {', '.join(f'{k} {v / 1e6:.0f} MB' for k, v in stored.items())}"
    )
    print(
        f"  {seconds - trials:.1f} s without the trials; {', '.join(f'{k} {v} s' for k, v in phases.items())}"
    )
    for one in result["variants"]:
        print(
            f"  {one['precision']:8} mean cosine {one['meanCosine']:.5f}, min {one['minCosine']:.5f}, "
            f"rank {one['rankAgreement']:.5f}, {one['tokensPerSecond']:.0f} tokens/s  {one['reason']}"
        )
    return {
        "seconds": round(seconds, 2),
        "cpuSeconds": round(cpu, 2),
        "peakMiB": round(peak / 1024),
        "phases": phases,
        "modelBytes": size,
        "storedBytes": stored,
        "variants": result["variants"],
    }


def rates(store: Path, rounds: int) -> Mapping[str, Any]:
    """Print tokens a second of both precisions, and give them."""
    told: dict[str, Any] = {}
    runners = {}
    for precision in ("float32", "int8"):
        flags = {
            "model": {"source": str(minilm_folder()), "store": store},
            "engine": {"precision": precision},
        }
        start = time.perf_counter()
        runners[precision] = load_runner(load_config(flags=flags))
        seconds = time.perf_counter() - start
        print(f"loaded {runners[precision].engine.precision} from the store in {seconds:.2f} s")
    start = time.perf_counter()
    load_runner(load_config(flags={"model": {"source": str(minilm_folder())}, "onnx": {"convert": "Never"}}))
    print(f"loaded float32 by writing its graph in {time.perf_counter() - start:.2f} s")
    print(f"{'batch':30} {'float32':>9} {'int8':>9} {'of float32':>11} {'by CPU time':>12}   tokens/s")
    for name, lengths in CASES.items():
        batch = random_batch(lengths)
        repeats = max(1, 2000 // batch.tokens)
        found: dict[str, list[tuple[float, float]]] = {precision: [] for precision in runners}
        for round_number in range(rounds + 1):
            for precision, runner in runners.items():
                start, cpu = time.perf_counter(), time.process_time()
                for _ in range(repeats):
                    runner.run(batch, OutputKind.DENSE)
                took = time.perf_counter() - start, time.process_time() - cpu
                if round_number:
                    found[precision].append(took)
        best = {p: batch.tokens * repeats / min(wall for wall, _ in took) for p, took in found.items()}
        both = list(zip(found["float32"], found["int8"], strict=True))
        of_wall = median(plain[0] / small[0] for plain, small in both)
        of_cpu = median(plain[1] / small[1] for plain, small in both)
        print(f"{name:30} {best['float32']:9.0f} {best['int8']:9.0f} {of_wall:11.2f} {of_cpu:12.2f}")
        told[name] = {
            "float32": round(best["float32"]),
            "int8": round(best["int8"]),
            "ratio": round(of_wall, 2),
            "ratioOfCpuTime": round(of_cpu, 2),
        }
    return told


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--large", action="store_true", help="the model of 24 x 1024 too")
    parser.add_argument("--json", type=Path, help="file that the figures are written to")
    arguments = parser.parse_args()
    print(detect_instruction_set())
    figures: dict[str, Any] = {"instructionSet": detect_instruction_set(), "cpus": count_usable_cpus()}
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        figures["MiniLM"] = converted(minilm_folder(), store)
        figures["tokensPerSecond"] = rates(store, arguments.rounds)
        if arguments.large:
            (Path(folder) / "24 x 1024").mkdir()
            figures["24 x 1024"] = converted(large_model(Path(folder) / "24 x 1024"), store)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
