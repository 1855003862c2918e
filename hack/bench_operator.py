"""`make bench-operator`: the operator with many objects, on the control plane without a node.

Makes objects as fast as the API server takes them and measures, per object, the time from its creation until its
Deployment exists, and how long the operator's health endpoint takes to answer meanwhile; then requests to the API
server, memory, and what an idle operator writes. Prints text and writes docs/benchmarks/operator.json. The children's
pods are never scheduled: there is no node.
"""

import argparse
import asyncio
import concurrent.futures
import json
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "hack"))

from cluster import build, lifecycle  # noqa: E402
from cluster.kubectl import Kubectl  # noqa: E402
from cluster.layout import layout  # noqa: E402
from glm5_operator.cluster import Cluster  # noqa: E402
from glm5_operator.metrics import Metrics  # noqa: E402
from glm5_operator.operator import utc_now  # noqa: E402

NAMESPACE = "bench-operator"
PORT = 19080
_PARALLEL = 4


def manifest(number: int) -> dict[str, Any]:
    """One object. Its pod asks for GPUs that no node has."""
    return {
        "apiVersion": "glm5.dev/v1alpha1",
        "kind": "GLM5Deployment",
        "metadata": {"name": f"glm5-{number:04}", "namespace": NAMESPACE},
        "spec": {"model": {"source": {"persistentVolumeClaim": {"claimName": "weights"}}}},
    }


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
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

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


async def send(kubectl: Kubectl, count: int) -> dict[str, float]:
    """Creates the objects, a few at a time. Returns when each was sent (monotonic clock, seconds)."""
    os.environ["KUBECONFIG"] = kubectl.environment["KUBECONFIG"]
    cluster = await Cluster.connect(Metrics(), utc_now)
    limit = asyncio.Semaphore(_PARALLEL)
    started: dict[str, float] = {}

    async def create(body: dict[str, Any]) -> None:
        async with limit:
            started[body["metadata"]["name"]] = time.monotonic()
            await cluster.apply(body)

    try:
        await asyncio.gather(*(create(manifest(number)) for number in range(count)))
    finally:
        await cluster.close()
    return started


def children_seconds(started: dict[str, float], log: list[tuple[str, float]]) -> list[float]:
    """Seconds from sending each object until its Deployment was seen."""
    seen = dict(reversed(log))
    return [seen[name] - began for name, began in started.items() if name in seen]


def watch_deployments(kubectl: Kubectl, log: list[tuple[str, float]]) -> subprocess.Popen[str]:
    """Notes when each Deployment appears, by a watch."""
    command = [kubectl.program, "get", "deployments", "-n", NAMESPACE, "--watch", "--no-headers", "-o", "name"]
    process = subprocess.Popen(command, env=kubectl.environment, stdout=subprocess.PIPE, text=True)

    def read() -> None:
        for line in process.stdout or ():
            log.append((line.strip().rpartition("/")[2], time.monotonic()))

    concurrent.futures.ThreadPoolExecutor(1).submit(read)
    return process


def run(kubectl: Kubectl, count: int, idle_seconds: int) -> dict[str, Any]:
    """Figures for `count` objects, and for so many seconds without a change."""
    kubectl.run("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait=true", timeout=600)
    kubectl.run("create", "namespace", NAMESPACE)
    operator = Operator(kubectl, Path("/tmp/bench-operator.log"))
    watcher = None
    try:
        operator.wait()
        empty, cpu_before = operator.memory_mib(), operator.cpu_seconds()
        log: list[tuple[str, float]] = []
        watcher = watch_deployments(kubectl, log)
        time.sleep(1)
        with Health() as health:
            begin = time.monotonic()
            started = asyncio.run(send(kubectl, count))
            sent = time.monotonic() - begin
            deadline = time.monotonic() + 600
            while len({name for name, _ in log}) < count and time.monotonic() < deadline:
                time.sleep(0.2)
            done = time.monotonic() - begin
            waits = sorted(children_seconds(started, log))
            loaded = os.getloadavg()[0]
            busy: dict[str, float] = {}
            while (now := operator.requests()) != busy:
                busy = now
                time.sleep(5)
        cpu = operator.cpu_seconds() - cpu_before
        time.sleep(idle_seconds)
        idle = {method: value - busy.get(method, 0) for method, value in operator.requests().items()}
        figures = operator.metrics()
        passes = figures["glm5_operator_reconcile_seconds_count"]
        return {
            "objects": count,
            "objects_with_children": len(waits),
            "seconds_to_send_all": round(sent, 1),
            "seconds_until_all_have_children": round(done, 1),
            "apply_to_deployment_seconds": {
                "p50": round(statistics.median(waits), 3),
                "p99": round(waits[int(0.99 * (len(waits) - 1))], 3),
            },
            "api_requests_per_object": {method: round(value / count, 2) for method, value in sorted(busy.items())},
            "operator_cpu_milliseconds_per_object": round(1e3 * cpu / count, 1),
            "slowest_health_answer_seconds": round(health.slowest, 3),
            "health_refusals": health.refusals,
            "load_average_meanwhile": round(loaded, 1),
            "api_writes_while_idle": sum(value for method, value in idle.items() if method != "GET"),
            "idle_seconds": idle_seconds,
            "passes_per_object": round(passes / count, 1),
            "mean_pass_milliseconds": round(1e3 * figures["glm5_operator_reconcile_seconds_sum"] / passes, 1),
            "memory_mib": {"empty": round(empty, 1), "with_objects": round(operator.memory_mib(), 1)},
        }
    finally:
        if watcher is not None:
            watcher.kill()
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
    parser.add_argument("--objects", type=int, nargs="+", default=[100, 1000])
    parser.add_argument(
        "--idle-seconds", type=int, nargs="+", default=[60], help="one for each count; the last one is for the rest too"
    )
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "benchmarks" / "operator.json")
    arguments = parser.parse_args()
    control_plane = layout("control-plane")
    lifecycle.up(control_plane)
    kubectl = Kubectl(str(build.folder(control_plane) / "kubectl"), control_plane.kubeconfig)
    kubectl.run("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "manifests" / "crd.yaml"))
    kubernetes = json.loads(kubectl.run("version", "-o", "json"))["serverVersion"]["gitVersion"]
    result: dict[str, Any] = {"machine": machine(), "kubernetes": kubernetes, "runs": []}
    idle = arguments.idle_seconds
    for number, count in enumerate(arguments.objects):
        figures = run(kubectl, count, idle[min(number, len(idle) - 1)])
        result["runs"].append(figures)
        print(json.dumps(figures, indent=2), flush=True)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(result, indent=2) + "\n")
    print(f"written: {arguments.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
