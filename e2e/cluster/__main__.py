"""``python -m e2e.cluster``: the cluster from the command line."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from e2e.cluster.binaries import build_helm
from e2e.cluster.emulation import ARM64
from e2e.cluster.errors import ClusterError
from e2e.cluster.images import build_cuda, load_project_images, self_test, write_manifest
from e2e.cluster.layout import Layout
from e2e.cluster.lifecycle import PROCESS_NAMES, Cluster
from e2e.cluster.progress import Progress
from e2e.cluster.shell import in_node


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.cluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("up", help="start the cluster, or find that it runs")
    commands.add_parser("helm", help="build helm, which the chart's tests need without a cluster")
    commands.add_parser("down", help="end every process of it; keeps the caches")
    commands.add_parser("status", help="what runs; exit code 1 unless all is well")
    commands.add_parser("images", help="build the project's images and load them into the node")
    both = commands.add_parser(
        "image-arm64", help="build the runtime's image for amd64 and arm64, one manifest"
    )
    both.add_argument("folder", type=Path, help="where the OCI layout is written")
    cuda = commands.add_parser(
        "image-cuda", help="build the runtime's image with torch and run its self-test"
    )
    cuda.add_argument("--architecture", choices=(ARM64,), help="by emulation where this machine is another")
    commands.add_parser("kubeconfig", help="print the administrator's kubeconfig path")
    commands.add_parser(
        "env", help='print shell lines: eval "$(python -m e2e.cluster env)" gives kubectl and helm'
    )
    inside = commands.add_parser("nsexec", help="run a command where services and pods can be reached")
    inside.add_argument("words", nargs="+", metavar="CMD")
    loading = commands.add_parser("load-image", help="load an image archive into the node")
    loading.add_argument("archive", type=Path)
    options = parser.parse_args(arguments)
    cluster = Cluster(Layout.of_user(), Progress())
    try:
        return _run(cluster, options)
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _run(cluster: Cluster, options: argparse.Namespace) -> int:
    match options.command:
        case "up":
            cluster.up()
        case "helm":
            print(build_helm(cluster.layout, cluster.progress))
        case "down":
            cluster.down()
        case "status":
            return _print_status(cluster)
        case "images":
            cluster.up()
            for image in load_project_images(cluster.images):
                print(f"{image.reference} {'loaded' if image.was_loaded else 'unchanged'}")
        case "image-arm64":
            print(write_manifest(cluster.images, options.folder))
        case "image-cuda":
            reference = build_cuda(cluster.images, options.architecture)
            print(self_test(cluster.images, reference, options.architecture), end="")
            print(f"{reference} in {cluster.layout.buildah / 'storage'}")
        case "kubeconfig":
            print(cluster.layout.admin_kubeconfig)
        case "env":
            print(f"export KUBECONFIG={cluster.layout.admin_kubeconfig}")
            print(f"export PATH={cluster.layout.binaries}:$PATH")
        case "nsexec":
            command = in_node(options.words)
            os.execvp(command[0], command)
        case "load-image":
            cluster.containerd.load(options.archive)
    return 0


def _print_status(cluster: Cluster) -> int:
    for name in PROCESS_NAMES:
        print(f"{name:24} {'running' if cluster.supervisor.runs(name) else 'not running'}")
    complaint = cluster.complaint()
    print(f"{'cluster':24} {complaint or 'healthy'}")
    return 1 if complaint else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
