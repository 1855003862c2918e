"""`make bench-operator`: the operator with many objects, on the control plane without a node.

Makes objects as fast as the API server takes them, or so many a second, and measures, per object, the time from its
creation until its Deployment exists and until all its children do, how long objects wait in the operator's queue, and
how long its health endpoint takes to answer meanwhile; then the same for objects that are made one at a time beside
those that are there, requests to the API server, memory, and what an idle operator writes. Prints text and writes
docs/benchmarks/operator.json. The children's pods are never scheduled: there is no node.
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "hack"))

from cluster import build, lifecycle, sandbox  # noqa: E402
from cluster.kubectl import Kubectl  # noqa: E402
from cluster.layout import Layout, layout  # noqa: E402
from glm5_operator.cluster import Cluster  # noqa: E402
from glm5_operator.metrics import Metrics  # noqa: E402
from glm5_operator.operator import utc_now  # noqa: E402

NAMESPACE = "bench-operator"
PORT = 19080
_PARALLEL = 4
_LATE_OBJECTS = 20
_LATE_PAUSE_SECONDS = 1.0
# The controller manager makes pods of many Deployments long after, a few a second.
_SETTLED_SECONDS = 20.0
_PROGRAMS = ("kube-apiserver", "etcd", "kube-controller-manager", "kube-scheduler")


def manifest(number: int) -> dict[str, Any]:
    """One object. Its pod asks for GPUs that no node has."""
    return {
        "apiVersion": "glm5.dev/v1alpha1",
        "kind": "GLM5Deployment",
        "metadata": {"name": f"glm5-{number:04}", "namespace": NAMESPACE},
        "spec": {"model": {"source": {"persistentVolumeClaim": {"claimName": "weights"}}}},
    }


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def control_plane_seconds(control_plane: Layout) -> dict[str, float]:
    """Processor time that each of the control plane's programs has used so far."""
    found = {Path(member.argv[0]).name: member.pid for member in sandbox.members(control_plane)}
    return {name: cpu_seconds(found[name]) for name in _PROGRAMS if name in found}


class Operator:
    """The operator's process, and its own metrics."""

    def __init__(self, kubectl: Kubectl, log: Path) -> None:
        variables = {
            "GLM5_OPERATOR_NAMESPACE": NAMESPACE,
            "GLM5_OPERATOR_WATCH_NAMESPACES": NAMESPACE,
            "GLM5_OPERATOR_METRICS_PORT": str(PORT),
            "GLM5_OPERATOR_HEALTH_PORT": str(PORT + 1),
        }
        command = [sys.executable, "-m", "glm5_operator", "run", "--log-level", "warning"]
        self.process = subprocess.Popen(command, env=kubectl.environment | variables, stderr=log.open("w"))

    def metrics(self) -> dict[str, float]:
        """All series by their text."""
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}

    def requests(self) -> dict[str, float]:
        """Requests to the API server by method."""
        found: dict[str, float] = {}
        for series, value in self.metrics().items():
            if series.startswith("glm5_operator_api_requests_total"):
                method = series.partition('method="')[2].partition('"')[0]
                kind = series.partition('kind="')[2].partition('"')[0]
                if kind != "Lease":
                    found[method] = found.get(method, 0) + value
        return found

    def memory_mib(self) -> float:
        """Resident memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    def cpu_seconds(self) -> float:
        """Processor time used so far."""
        return cpu_seconds(self.process.pid)

    def wait(self) -> None:
        """Waits until this process acts."""
        for _ in range(600):
            try:
                if self.metrics().get("glm5_operator_leader") == 1:
                    return
            except OSError:
                pass
            time.sleep(0.1)
        raise RuntimeError("the operator did not start within a minute")


def settled(operator: Operator) -> dict[str, float]:
    """Waits until the operator has asked nothing for a while. Returns its requests by method."""
    seen: dict[str, float] = {}
    while (now := operator.requests()) != seen:
        seen = now
        time.sleep(_SETTLED_SECONDS)
    return seen


class Health:
    """Asks the operator's health endpoint five times a second; keeps the slowest answer's time, and counts refusals."""

    def __init__(self) -> None:
        self.slowest = 0.0
        self.refusals = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> "Health":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _ask(self) -> None:
        while not self._stop.wait(0.2):
            begun = time.monotonic()
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{PORT + 1}/healthz", timeout=60).close()
            except OSError:
                self.refusals += 1
            self.slowest = max(self.slowest, time.monotonic() - begun)


async def send(kubectl: Kubectl, numbers: Sequence[int], per_second: float = 0) -> dict[str, float]:
    """Creates objects, a few at a time, at this rate (0: as fast as the API server takes them).

    Returns when each was sent (monotonic clock, seconds).
    """
    os.environ["KUBECONFIG"] = kubectl.environment["KUBECONFIG"]
    cluster = await Cluster.connect(Metrics(), utc_now)
    limit = asyncio.Semaphore(_PARALLEL)
    started: dict[str, float] = {}

    async def create(place: int, body: dict[str, Any]) -> None:
        if per_second:
            await asyncio.sleep(place / per_second)
        async with limit:
            started[body["metadata"]["name"]] = time.monotonic()
            await cluster.apply(body)

    try:
        await asyncio.gather(*(create(place, manifest(number)) for place, number in enumerate(numbers)))
    finally:
        await cluster.close()
    return started


class Watch:
    """Notes when each child of a kind appears (monotonic clock, seconds, by its name)."""

    def __init__(self, kubectl: Kubectl, kind: str) -> None:
        command = [kubectl.program, "get", kind, "-n", NAMESPACE, "--watch", "--no-headers", "-o", "name"]
        self._process = subprocess.Popen(command, env=kubectl.environment, stdout=subprocess.PIPE, text=True)
        self.seen: dict[str, float] = {}
        threading.Thread(target=self._read).start()

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self.seen.setdefault(line.strip().rpartition("/")[2], time.monotonic())


def wait_for_children(started: dict[str, float], *watches: Watch) -> None:
    """Waits until each object has the child that each watch looks for. Raises RuntimeError after ten minutes."""
    deadline = time.monotonic() + 600
    while missing := [name for name in started if not all(name in watch.seen for watch in watches)]:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{len(missing)} objects have not all children after ten minutes, such as {missing[0]}")
        time.sleep(0.05)


def seconds_until(started: dict[str, float], *watches: Watch) -> dict[str, float]:
    """Median and 99th percentile of the seconds from sending each object until every watch had seen its child."""
    waits = sorted(max(watch.seen[name] for watch in watches) - began for name, began in started.items())
    return {"p50": round(statistics.median(waits), 3), "p99": round(waits[int(0.99 * (len(waits) - 1))], 3)}


def share_within(figures: Mapping[str, float], histogram: str, bound: str) -> float:
    """Share of a histogram's observations that lie within one of its bounds."""
    return round(figures[f'{histogram}_bucket{{le="{bound}"}}'] / figures[f"{histogram}_count"], 4)


def run(control_plane: Layout, kubectl: Kubectl, count: int, per_second: float, idle_seconds: int) -> dict[str, Any]:
    """Figures for `count` objects that come at this rate (0: at once), and for so many seconds without a change."""
    kubectl.run("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait=true", timeout=600)
    kubectl.run("create", "namespace", NAMESPACE)
    operator = Operator(kubectl, Path("/tmp/bench-operator.log"))
    try:
        operator.wait()
        empty = operator.memory_mib()
        with Watch(kubectl, "deployments") as deployments, Watch(kubectl, "services") as services:
            time.sleep(1)
            before, control_plane_before = operator.cpu_seconds(), control_plane_seconds(control_plane)
            with Health() as health:
                begin = time.monotonic()
                started = asyncio.run(send(kubectl, range(count), per_second))
                sent = time.monotonic() - begin
                wait_for_children(started, deployments, services)
                done = time.monotonic() - begin
                so_far = {"operator": operator.cpu_seconds() - before} | {
                    name: seconds - control_plane_before.get(name, 0)
                    for name, seconds in control_plane_seconds(control_plane).items()
                }
                busy = settled(operator)
            cpu = operator.cpu_seconds() - before
            figures, memory = operator.metrics(), operator.memory_mib()
            late: dict[str, float] = {}
            for number in range(count, count + _LATE_OBJECTS):
                late |= asyncio.run(send(kubectl, [number]))
                wait_for_children(late, deployments, services)
                time.sleep(_LATE_PAUSE_SECONDS)
            quiet = settled(operator)
            time.sleep(idle_seconds)
            idle = {method: value - quiet.get(method, 0) for method, value in operator.requests().items()}
        passes = figures["glm5_operator_reconcile_seconds_count"]
        return {
            "objects": count,
            "objects_per_second": per_second or "as many as the API server takes",
            "seconds_to_send_all": round(sent, 1),
            "seconds_until_all_have_children": round(done, 1),
            "apply_to_deployment_seconds": seconds_until(started, deployments),
            "apply_to_all_children_seconds": seconds_until(started, deployments, services),
            "one_more_object_to_all_children_seconds": seconds_until(late, deployments, services),
            "processor_seconds_until_all_have_children": {name: round(value, 1) for name, value in so_far.items()},
            "api_requests_per_object": {method: round(value / count, 2) for method, value in sorted(busy.items())},
            "operator_cpu_milliseconds_per_object": round(1e3 * cpu / count, 1),
            "share_of_queue_waits_within_1_second": share_within(figures, "glm5_operator_queue_seconds", "1.0"),
            "slowest_health_answer_seconds": round(health.slowest, 3),
            "health_refusals": health.refusals,
            "api_writes_while_idle": sum(value for method, value in idle.items() if method != "GET"),
            "idle_seconds": idle_seconds,
            "passes_per_object": round(passes / count, 1),
            "mean_pass_milliseconds": round(1e3 * figures["glm5_operator_reconcile_seconds_sum"] / passes, 1),
            "memory_mib": {"empty": round(empty, 1), "with_objects": round(memory, 1)},
        }
    finally:
        operator.process.terminate()
        operator.process.wait(30)
        kubectl.run("delete", "namespace", NAMESPACE, "--wait=false")


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    model = Path("/proc/cpuinfo").read_text().partition("model name")[2].partition("\n")[0].lstrip("\t :")
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load_average_before": round(os.getloadavg()[0], 1),
    }


def main() -> int:
    """Runs the bench for each count. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, nargs="+", default=[100, 1000, 1000])
    parser.add_argument(
        "--per-second",
        type=float,
        nargs="+",
        default=[0, 0, 10],
        help="how many are made a second (0: as fast as the API server takes them); the last value is for the rest",
    )
    parser.add_argument("--idle-seconds", type=int, nargs="+", default=[60], help="likewise")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "benchmarks" / "operator.json")
    arguments = parser.parse_args()
    control_plane = layout("control-plane")
    lifecycle.up(control_plane)
    kubectl = Kubectl(str(build.folder(control_plane) / "kubectl"), control_plane.kubeconfig)
    kubectl.run("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "manifests" / "crd.yaml"))
    kubernetes = json.loads(kubectl.run("version", "-o", "json"))["serverVersion"]["gitVersion"]
    result: dict[str, Any] = {"machine": machine(), "kubernetes": kubernetes, "runs": []}
    rates, idle = arguments.per_second, arguments.idle_seconds
    for number, count in enumerate(arguments.objects):
        rate, seconds = rates[min(number, len(rates) - 1)], idle[min(number, len(idle) - 1)]
        figures = run(control_plane, kubectl, count, rate, seconds)
        result["runs"].append(figures)
        print(json.dumps(figures, indent=2), flush=True)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(result, indent=2) + "\n")
    print(f"written: {arguments.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
