"""Command line: `PYTHONPATH=hack python3 -m cluster up|down|status|build|load|env [--profile full|control-plane]`."""

import argparse
import sys
from pathlib import Path

from . import build, images, lifecycle
from .layout import PROFILES, layout
from .progress import Failure, warn


def main(arguments: list[str]) -> int:
    """Run one command; 0 when it did what was asked, 1 with a sentence on standard error when not."""
    parser = argparse.ArgumentParser(prog="cluster", description="The embedded one-node Kubernetes.")
    parser.add_argument("command", choices=("up", "down", "status", "build", "load", "env"))
    parser.add_argument("names", nargs="*", help="image archives (docker or OCI) for load, programs for build")
    parser.add_argument("--profile", choices=tuple(PROFILES), default="full", help="control-plane: without a node")
    options = parser.parse_intermixed_args(arguments)
    try:
        cluster = layout(options.profile)
        match options.command:
            case "up":
                lifecycle.up(cluster)
            case "down":
                lifecycle.down(cluster)
            case "build":
                build.build(cluster, options.names or build.programs(cluster))
            case "load":
                for archive in options.names:
                    images.load(cluster, Path(archive))
            case "env":
                print(f"export KUBECONFIG={cluster.kubeconfig} PATH={build.folder(cluster)}:$PATH")
            case "status":
                return _status(options.profile)
    except (Failure, ValueError) as failure:
        warn(str(failure))
        return 1
    return 0


def _status(profile: str) -> int:
    cluster = layout(profile)
    seen = lifecycle.status(cluster)
    if not seen.running:
        print("not running (make cluster-up starts it)")
        return 1
    print(f"{'healthy' if seen.healthy else 'NOT healthy'}; its programs use {seen.memory >> 20} MiB")
    for name in seen.not_running:
        print(f"not running: {name} (its log: {cluster.logs}/{name}.log; make cluster-up starts the cluster over)")
    print(f"export KUBECONFIG={cluster.kubeconfig} PATH={build.folder(cluster)}:$PATH")
    return 0 if seen.healthy else 1


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        warn("Interrupted. What was started is found and started over by the next run.")
        sys.exit(130)
