"""Many EmbeddingServices and one operator: time, requests, memory, reaction; beside a plain kopf operator.

    python -m benchmarks.operator_scale [--services 1000] [--pods] [--only ours] [--out FILE] [--note WORDS]

Brings the cluster of `e2e/cluster` up and stops the chart's operator there meanwhile. The operator under test runs as
a process of its own outside, so that its memory is its own. With `--pods` every service has a pod, on nodes of kwok;
without, services are suspended and the figures are those of the operator alone. At the end the operator is started anew
among all services. Prints a table and JSON, asserts nothing; fails when the operator ends by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from e2e.cluster.errors import ClusterError
from e2e.cluster.images import REPOSITORY
from e2e.cluster.kwok import fake_nodes
from e2e.cluster.layout import Layout
from e2e.cluster.lifecycle import Cluster
from e2e.cluster.polling import wait_until
from e2e.cluster.progress import Progress
from embedserve_operator.kube.references import ChildRef
from embedserve_runtime.telemetry.metrics import read_cpu_seconds

NAMESPACE = "operator-scale"
OPERATOR = ("deployment", "embedserve-operator", "--namespace", "embedserve-system")
CHILDREN = ("configmaps", "deployments", "services", "networkpolicies")
COUNTED = (*CHILDREN, "embeddingservices")
READS = ("GET",)
WRITES = ("APPLY", "PATCH", "POST", "PUT", "DELETE")
PODS_PER_NODE = 100
PATIENCE_S = 1800
SAMPLES = 60
BETWEEN_S = 2.5
"""Two changes are so far apart that all of them last longer than the operator's pause between two audits."""


@dataclass(frozen=True)
class Figures:
    """What was seen of one operator."""

    operator: str
    services: int
    all_applied_s: float
    cpu_s: float
    """Of the operator, up to there."""
    writes_per_service: float
    reads_per_service: float
    """GETs of single objects; lists and watches are a few for all services together."""
    writes_in_quiet_minute: int
    memory_mib: float
    """Once all is quiet."""
    peak_memory_mib: float
    reaction_p50_s: float
    reaction_p99_s: float
    restart_reaction_s: float
    """From the start of a second process to its first change of a child, with all services there."""
    restart_peak_memory_mib: float


def command(which: str) -> list[str]:
    if which == "ours":
        command = [
            "-m",
            "embedserve_operator.commands.cli",
            "run",
            "--namespace",
            NAMESPACE,
            "--lease-name",
            "bench",
        ]
        command += ["--watch-namespace", NAMESPACE, "--health-port", "18081", "--log-level", "warning"]
        return [sys.executable, *command]
    command = ["-m", "kopf", "run", "--standalone", "--namespace", NAMESPACE, "--quiet"]
    return [sys.executable, *command, str(REPOSITORY / "benchmarks" / "plain_kopf.py")]


@contextmanager
def running(which: str, cluster: Cluster) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "KUBECONFIG": str(cluster.layout.admin_kubeconfig)}
    log = Path(tempfile.gettempdir()) / f"operator-scale-{which}.log"
    with log.open("wb") as said:
        process = subprocess.Popen(command(which), env=environment, stdout=said, stderr=said, cwd=REPOSITORY)
        try:
            yield process
            if process.poll() is not None:
                raise ClusterError(f"the operator ended by itself: {log.read_text()[-2000:]}")
        finally:
            process.terminate()
            process.wait(60)


def service(number: int, *, pods: bool) -> dict[str, Any]:
    repo = f"acme/model-{number}"
    return {
        "apiVersion": "embedserve.dev/v1alpha1",
        "kind": "EmbeddingService",
        "metadata": {"name": f"s{number}", "namespace": NAMESPACE},
        "spec": {"model": {"source": {"huggingFace": {"repo": repo}}}, "suspend": not pods},
    }


def requests(cluster: Cluster, verbs: Sequence[str]) -> int:
    """Requests for what only the operator under test asks for, as the API server counts them; status of Deployments and
    Leases are others' or always there."""
    total = 0.0
    said: list[str] = []

    def answered() -> bool:
        # A server under this load may be late with a handshake.
        asked = cluster.kubectl.attempt("get", "--raw", "/metrics", timeout_s=60)
        said[:] = asked.stdout.splitlines() if asked.returncode == 0 else []
        return bool(said)

    wait_until("the API server's counters", answered, timeout_s=300)
    for line in said:
        if not line.startswith("apiserver_request_total{"):
            continue
        labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
        own = labels["resource"] == "embeddingservices" or not labels.get("subresource")
        if labels["resource"] in COUNTED and labels["verb"] in verbs and own:
            total += float(line.rpartition(" ")[2])
    return int(total)


def writes(cluster: Cluster) -> int:
    return requests(cluster, WRITES)


def count(cluster: Cluster, kind: str) -> int:
    said = cluster.kubectl("get", kind, "--namespace", NAMESPACE, "--output=name", timeout_s=120)
    return sum("/s" in name for name in said.split())


def memory_mib(process: subprocess.Popen[bytes], what: str = "VmRSS") -> float:
    """Resident memory now, or with `VmHWM` the most there was."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return round(int(re.findall(rf"{what}:\s+(\d+) kB", status)[0]) / 1024, 1)


def cpu_s(process: subprocess.Popen[bytes]) -> float:
    return round(read_cpu_seconds(process.pid), 1)


async def reactions(services: int, process: subprocess.Popen[bytes], samples: int = SAMPLES) -> list[float]:
    """Seconds from a change of one service's Service settings to the change of its Service."""
    # The client library reads $KUBECONFIG when it is imported.
    from embedserve_operator.kube.client import KubeClient

    found = []
    async with KubeClient(request_timeout=20) as kube:
        for sample in range(samples):
            name = f"s{sample * services // samples}"
            patch = {
                "apiVersion": "embedserve.dev/v1alpha1",
                "kind": "EmbeddingService",
                "metadata": {"name": name, "namespace": NAMESPACE},
                "spec": {"service": {"annotations": {"sample": str(time.time())}}},
            }
            await kube.apply(patch, force=True, manager="bench")
            began = time.monotonic()
            want = patch["spec"]["service"]["annotations"]["sample"]  # type: ignore[index]
            while True:
                seen = await kube.get(NAMESPACE, ChildRef("Service", name)) or {}
                if seen.get("metadata", {}).get("annotations", {}).get("sample") == want:
                    break
                _check_runs(process)
                await asyncio.sleep(0.005)
            found.append(time.monotonic() - began)
            await asyncio.sleep(BETWEEN_S if samples > 1 else 0)
    return sorted(found)


def measure(which: str, cluster: Cluster, services: int, *, pods: bool) -> Figures:
    kubectl = cluster.kubectl
    kubectl("create", "namespace", NAMESPACE)
    try:
        items = [service(number, pods=pods) for number in range(services)]
        with cluster.progress.step(f"{which}: creating {services} resources"):
            for start in range(0, services, 200):
                batch = {"apiVersion": "v1", "kind": "List", "items": items[start : start + 200]}
                kubectl("create", "--filename", "-", stdin=json.dumps(batch), timeout_s=300)
        found = _measure(which, cluster, services, pods=pods)
    finally:
        with cluster.progress.step(f"{which}: clearing away"):
            kubectl("delete", "namespace", NAMESPACE, timeout_s=PATIENCE_S)
    return found


def _measure(which: str, cluster: Cluster, services: int, *, pods: bool) -> Figures:
    step = cluster.progress.step
    before, read = writes(cluster), requests(cluster, READS)
    began = time.monotonic()
    with running(which, cluster) as process:
        with step(f"{which}: waiting until all children exist"):
            _wait("all children", lambda: all(count(cluster, kind) >= services for kind in CHILDREN), process)
        took = time.monotonic() - began
        if pods:
            with step(f"{which}: waiting for the pods"):
                _wait("all pods", lambda: count(cluster, "pods") >= services, process)
        with step(f"{which}: waiting until it is quiet"):
            _until_quiet(cluster, process)
        written, read = writes(cluster) - before, requests(cluster, READS) - read
        spent, memory = cpu_s(process), memory_mib(process)
        with step(f"{which}: a quiet minute"):
            quiet = writes(cluster)
            end = time.monotonic() + 60
            _wait("a minute", lambda: time.monotonic() >= end, process)
            quiet = writes(cluster) - quiet
        with step(f"{which}: {SAMPLES} changes, one after the other"):
            times = asyncio.run(_bounded(reactions(services, process)))
        peak = memory_mib(process, "VmHWM")
    restarted = time.monotonic()
    with running(which, cluster) as process, step(f"{which}: a second process among all services"):
        asyncio.run(_bounded(reactions(services, process, samples=1)))
        restart = time.monotonic() - restarted
        _until_quiet(cluster, process)
        restart_peak = memory_mib(process, "VmHWM")
    return Figures(
        operator=which,
        services=services,
        all_applied_s=round(took, 1),
        cpu_s=spent,
        writes_per_service=round(written / services, 2),
        reads_per_service=round(read / services, 2),
        writes_in_quiet_minute=quiet,
        memory_mib=memory,
        peak_memory_mib=peak,
        reaction_p50_s=round(statistics.median(times), 3),
        reaction_p99_s=round(times[int(0.99 * (len(times) - 1))], 3),
        restart_reaction_s=round(restart, 1),
        restart_peak_memory_mib=restart_peak,
    )


def _check_runs(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        raise ClusterError("the operator ended by itself; see its log")


async def _bounded(measured: Awaitable[list[float]]) -> list[float]:
    async with asyncio.timeout(PATIENCE_S):
        return await measured


def _wait(what: str, met: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    def look() -> bool:
        _check_runs(process)
        return met()

    wait_until(what, look, timeout_s=PATIENCE_S, every_s=2)


def _until_quiet(cluster: Cluster, process: subprocess.Popen[bytes]) -> None:
    """Until nothing has been written for a while."""
    seen = [writes(cluster)]

    def quiet() -> bool:
        seen.append(writes(cluster))
        return len(seen) > 5 and len(set(seen[-5:])) == 1

    _wait("no more writes", quiet, process)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--services", type=int, default=1000)
    parser.add_argument("--pods", action="store_true", help="with a pod each, on nodes of kwok")
    parser.add_argument("--only", choices=["ours", "plain"])
    parser.add_argument("--out", type=Path, help="file of results that the figures are added to")
    parser.add_argument("--note", default="", help="under which circumstances, for the file")
    options = parser.parse_args()
    cluster = Cluster(Layout.of_user(), Progress())
    cluster.up()
    os.environ["KUBECONFIG"] = str(cluster.layout.admin_kubeconfig)
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "--filename", str(REPOSITORY / "crds"))
    there = cluster.kubectl.get(*OPERATOR)
    if there is not None:
        cluster.kubectl("scale", *OPERATOR, "--replicas=0")
    found = []
    with ExitStack() as stack:
        if options.pods:
            count_of_nodes = -(-options.services // PODS_PER_NODE)
            stack.enter_context(fake_nodes(cluster, [_node(number) for number in range(count_of_nodes)]))
        asked = [which for which in ("ours", "plain") if options.only in (None, which)]
        found += [measure(which, cluster, options.services, pods=options.pods) for which in asked]
    if there is not None:
        cluster.kubectl("scale", *OPERATOR, f"--replicas={there['spec']['replicas']}")
    _print(found)
    if options.out is not None:
        _add(options.out, found, options.note)
    return 0


def _node(number: int) -> dict[str, Any]:
    name = f"scale-{number}"
    room = {"cpu": "1000", "memory": "1000Gi", "pods": str(PODS_PER_NODE + 20)}
    labels = {"kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux", "kubernetes.io/hostname": name}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {"allocatable": room, "capacity": room},
    }


def _print(found: list[Figures]) -> None:
    rows = [asdict(figures) for figures in found]
    for field in rows[0]:
        print(f"{field:24}" + "".join(f"{row[field]!s:>14}" for row in rows))
    print(json.dumps(rows))


def _add(path: Path, found: list[Figures], note: str) -> None:
    before = json.loads(path.read_text()) if path.exists() else []
    made = {"date": time.strftime("%Y-%m-%d"), "cpus": os.cpu_count(), "note": note}
    path.write_text(json.dumps([*before, *({**made, **asdict(one)} for one in found)], indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
