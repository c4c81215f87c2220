"""The dashboard and the alerts ask for metrics that the runtime has, or the operator."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from embedserve_operator.process.metrics import OperatorMetrics
from embedserve_runtime.frontends.context import build_request_series
from embedserve_runtime.telemetry.metrics import Metrics

CHART = Path(__file__).parents[2] / "charts" / "embedserve"
FILES = [CHART / "dashboards" / "embedserve.json", CHART / "templates" / "prometheusrule.yaml"]
METRIC = re.compile(r"\bembedserve_[a-z_]+")


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.name)
def test_every_metric_that_is_asked_for_exists(file: Path) -> None:
    metrics = Metrics(build_request_series())
    there = {sample.name for family in metrics.registry.collect() for sample in family.samples}
    # A gauge with labels has samples only once it is set.
    there |= {family.name for family in metrics.registry.collect()}
    of_operator = text_string_to_metric_families(OperatorMetrics().format_page().decode())
    there |= {sample.name for family in of_operator for sample in family.samples}
    asked = set(METRIC.findall(file.read_text(encoding="utf-8")))
    assert asked
    assert asked <= there
