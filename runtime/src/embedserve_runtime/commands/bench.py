"""`embedserve bench`: measures a model on this machine and prints the report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from embedserve_runtime.benchmarking.bench import BenchOptions, BenchReport, run_benchmark
from embedserve_runtime.benchmarking.report import format_table, list_rows, render_chart
from embedserve_runtime.commands.tables import build_fact_table, print_table
from embedserve_runtime.config import RuntimeConfig
from embedserve_runtime.errors import ConfigError


def run(config: RuntimeConfig, options: Mapping[str, Any], out: TextIO) -> int:
    """Run the benchmark and print its report; return the exit code.

    options: as the command line has them. Raises EmbedserveError.
    """
    bench_options = BenchOptions(options["texts"], options["clients"], options["batch"], options["seconds"])
    report = run_benchmark(config, bench_options)
    if options["json"]:
        out.write(json.dumps(asdict(report), indent=2) + "\n")
    else:
        rows = [(name, [value]) for name, value in list_rows(report)]
        print_table(out, format_table(report) + "\n", partial(build_fact_table, rows))
    if options["picture"] is not None:
        _write_chart(options["picture"], report)
    return 0


def _write_chart(file: Path, report: BenchReport) -> None:
    """Write the report's chart. Raises ConfigError where the file cannot be written."""
    try:
        file.write_text(render_chart(report), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the picture cannot be written to {file}: {error.strerror}") from error
