"""Formats the report of a benchmark as a table and as a chart."""

from __future__ import annotations

from embedserve_runtime.benchmarking.bar_chart import Bar, BarGroup, render_bar_chart
from embedserve_runtime.benchmarking.bench import BenchReport


def list_rows(report: BenchReport) -> list[tuple[str, str]]:
    """List the report as names and values; the last one is the suggestion."""
    best = report.suggestion
    rows = [
        ("model", f"{report.model}, engine {report.engine}"),
        ("texts", f"{report.texts}, {report.mean_tokens:.0f} tokens on average"),
        (
            "load",
            f"{report.clients} clients, {_describe_requests(report)}, {report.requests} requests answered",
        ),
        ("tokens/s", f"{report.tokens_per_second:,.0f}"),
        ("texts/s", f"{report.texts_per_second:,.1f}"),
        ("latency", f"p50 {report.p50_ms:.1f} ms, p99 {report.p99_ms:.1f} ms"),
        ("padding", f"{report.padding_share:.1%} of all positions"),
        ("tokenizing", f"{report.tokenizing_share:.1%} of tokenizing and engine together"),
    ]
    if report.product_gflops is not None and report.product_share is not None:
        rows.append(
            (
                "matrix products",
                f"{report.product_share:.0%} of the {report.product_gflops:,.0f} GFLOP/s measured in float32",
            )
        )
    rows += [
        ("precision", _describe_precisions(report)),
        ("budgets", ", ".join(f"{budget}: {rate:,.0f}/s" for budget, rate in report.budgets.items())),
        (
            "suggested",
            f"batching.max_batch_tokens {best.max_batch_tokens}, server.http_workers {best.http_workers}, "
            f"engine.threads {best.threads}, engine.precision {best.precision}",
        ),
    ]
    return rows


def format_table(report: BenchReport) -> str:
    """Format the report as lines of a name and a value."""
    rows = list_rows(report)
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:{width}}  {value}" for name, value in rows)


def _describe_requests(report: BenchReport) -> str:
    return "one text a request" if report.batch == 1 else f"{report.batch} texts a request"


def _describe_precisions(report: BenchReport) -> str:
    measured = report.suggestion.precision
    if report.variants:
        rates = ", ".join(f"{precision} {rate:,.0f}/s" for precision, rate in report.variants.items())
        return f"{measured}; when it was converted: {rates}"
    if (report.engine, measured) == ("onnx", "float32"):
        return "float32; `embedserve convert` tries what is faster on this machine"
    return measured


def render_chart(report: BenchReport) -> str:
    """Render tokens/s by token budget, and under load, as SVG."""
    suggested = report.suggestion.max_batch_tokens
    budgets = [
        Bar(f"{budget:,} tokens", rate, note=", suggested" if budget == suggested else "")
        for budget, rate in report.budgets.items()
    ]
    load = Bar(f"{report.clients} clients, {_describe_requests(report)}", report.tokens_per_second, 1)
    return render_bar_chart(
        f"tokens/s on this machine: {report.model}",
        [
            BarGroup("the engine alone, by token budget (batching.max_batch_tokens)", budgets),
            BarGroup("under load", [load]),
        ],
    )
