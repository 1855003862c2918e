"""What monitoring shows of a real server in a real cluster: every panel, and counts that survive restarts."""

import copy
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from demo.deployment import wait_ready
from demo.names import DEPLOYMENT, SAMPLE
from monitoring.check import panel_queries

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

NAME = "watched"
READY_SECONDS = 300
# These have something to show only with speculative decoding, with a firing alert, with something wrong.
MAY_BE_EMPTY = {"Accepted draft length", "Alerts firing", "Conditions that do not hold"}


@pytest.fixture(scope="module")
def watched(line):
    """A deployment of two ranks that has just done some work."""
    line.delete(DEPLOYMENT)
    value = copy.deepcopy(yaml.safe_load(SAMPLE.read_text()))
    value["metadata"]["name"] = NAME
    value["spec"]["gpus"] = {"count": 2, "tensorParallelSize": 2}
    value["spec"]["kvCache"] = {"maxTokens": 20000}
    line.apply(value)
    wait_ready(line.kubectl, line.namespace, NAME, timeout=READY_SECONDS)
    line.measure(NAME, requests=4, tokens=24)
    yield NAME
    line.delete(NAME)


def pod(line) -> dict:
    (found,) = line.kubectl.get("pods", "-n", line.namespace, "-l", f"glm5.dev/deployment={NAME}")["items"]
    return found


def restarts(line, container: str) -> int:
    status = pod(line)["status"]
    all_containers = [*status["containerStatuses"], *status.get("initContainerStatuses", [])]
    return next(entry["restartCount"] for entry in all_containers if entry["name"] == container)


def end_process_1(line, container: str) -> None:
    """End the container as the kubelet would, and wait until it runs again."""
    before = restarts(line, container)
    kill = "import os, signal; os.kill(1, signal.SIGTERM)"
    name = pod(line)["metadata"]["name"]
    line.kubectl.run("exec", "-n", line.namespace, name, "-c", container, "--", "python3", "-c", kill)
    deadline = time.monotonic() + 120
    while restarts(line, container) == before:
        assert time.monotonic() < deadline, f"{container} did not restart"
        time.sleep(1)


def counters(line) -> dict[str, float]:
    """Return all of the pod's own counters, as the exporter serves them now."""
    path = f"/api/v1/namespaces/{line.namespace}/pods/{pod(line)['metadata']['name']}:9408/proxy/metrics"
    lines = line.kubectl.run("get", "--raw", path).splitlines()
    wanted = ("glm5_decode_", "glm5_rank_start")
    samples = (entry.rpartition(" ") for entry in lines if entry.startswith(wanted))
    gauges = ("batch_size", "kv_tokens", "tokens_per_second", "running_requests")
    return {name: float(value) for name, _, value in samples if not any(gauge in name for gauge in gauges)}


@pytest.mark.parametrize("board", ["glm5-decode", "glm5-fleet", "glm5-operator"])
def test_every_panel_has_data_of_a_working_server(line, watched, board):
    silent = [
        f"{panel}: {expression}"
        for name, panel, expression in panel_queries()
        if name == board
        and panel not in MAY_BE_EMPTY
        and "DCGM" not in expression  # no GPU here
        and not line.prometheus.query(expression)
    ]
    assert silent == []


def test_an_idle_server_moves_no_counter(line, watched):
    before = counters(line)
    time.sleep(12)
    assert counters(line) == before
    assert len(before) > 100


def test_counts_stay_exact_over_a_restart_of_the_exporter(line, watched):
    before = counters(line)
    end_process_1(line, "exporter")
    measured = line.measure(NAME, requests=3, tokens=20)
    after = counters(line)
    tokens = next(name for name in after if name.startswith("glm5_decode_tokens_total"))
    assert after[tokens] - before[tokens] == measured.client_decode_tokens == 3 * 19
    assert all(after[name] >= value for name, value in before.items())


def test_a_restarted_server_counts_from_zero_and_exactly(line, watched):
    before = counters(line)
    end_process_1(line, "server")
    wait_ready(line.kubectl, line.namespace, NAME, timeout=READY_SECONDS)
    measured = line.measure(NAME, requests=3, tokens=20)
    assert measured.spent.tokens == measured.client_decode_tokens == 3 * 19
    after = counters(line)
    starts = [name for name in after if name.startswith("glm5_rank_start")]
    assert len(starts) == 2
    assert all(after[name] > before[name] for name in starts)


def test_top_shows_the_same_through_the_api_server(line, watched):
    program = Path(sys.executable).with_name("glm5-mla")
    command = [program, "top", NAME, "-n", line.namespace, "--once", "--json"]
    result = subprocess.run(command, env=line.kubectl.environment, capture_output=True, text=True, timeout=30)
    assert result.returncode == 0, result.stderr
    (shown,) = json.loads(result.stdout)["pods"]
    assert shown["deployment"] == NAME
    assert shown["backend"]["kvCast"] == "WholePool"
    assert [rank["alive"] for rank in shown["ranks"]] == [True, True]
