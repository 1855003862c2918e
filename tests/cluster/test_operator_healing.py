"""Trouble that comes and goes: what the object says meanwhile, that it says it no longer than it holds, and what heals.

One server, started once, goes through all of it, in the order of this file.
"""

import contextlib
import http.client
import json
import socket
import threading
import time

import pytest

from cluster import build, node
from cluster.layout import NODE_NAME
from demo.deployment import condition, explain, pod_name, wait_ready

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

NAME = "healing"
READY_SECONDS = 300
# Kubernetes gives a node 50 s to answer, and its pods the seconds that they tolerate.
LOST_SECONDS = 120
TOLERATED_SECONDS = 5

# Finds SGLang's scheduler in its container, which has no ps, and sends it a signal.
SIGNAL = """
import os, signal, sys
found = 0
for entry in filter(str.isdigit, os.listdir("/proc")):
    with open(f"/proc/{entry}/cmdline", "rb") as line:
        if line.read().startswith(b"sglang::scheduler"):
            os.kill(int(entry), signal.Signals[sys.argv[1]])
            found += 1
print(found)
"""


def spec(line, **changes):
    tolerations = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": TOLERATED_SECONDS}
        for key in ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")
    ]
    return {
        "model": {"source": {"persistentVolumeClaim": {"claimName": "tiny-model"}}},
        "gpus": {"count": 4, "tensorParallelSize": 1},
        "kvCache": {"maxTokens": 20000},
        "server": {"image": line.images["server-cpu"], "toolCallParser": "", "reasoningParser": ""},
        "sharedMemory": "1Gi",
        "startup": {"timeout": "10m"},
        "drain": {"gracePeriod": "5s"},
        "podTemplate": {"spec": {"tolerations": tolerations}},
        **changes,
    }


def apply(line, **changes):
    line.apply(
        {
            "apiVersion": "glm5.dev/v1alpha1",
            "kind": "GLM5Deployment",
            "metadata": {"name": NAME},
            "spec": spec(line, **changes),
        }
    )


def described(line):
    return line.kubectl.run("describe", "glm5", NAME, "-n", line.namespace).partition("\nEvents:")[0]


def pods(line):
    """Its pods by uid."""
    found = line.kubectl.get("pods", "-n", line.namespace, "-l", f"glm5.dev/deployment={NAME}")["items"]
    return {pod["metadata"]["uid"]: pod for pod in found}


def is_ready(pod):
    return condition(pod, "Ready").get("status") == "True" and "deletionTimestamp" not in pod["metadata"]


def wait_until(line, what, check, *, seconds=120):
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, f"not so after {seconds} s: {what}. {explain(line.get(NAME))}"
        time.sleep(1)


@pytest.fixture(scope="module", autouse=True)
def removed_at_the_end(line):
    yield
    line.delete(NAME)


@pytest.fixture(scope="module")
def serving(line):
    """The object with one pod that answers."""
    apply(line)
    wait_ready(line.kubectl, line.namespace, NAME, timeout=READY_SECONDS)


def test_a_start_that_takes_longer_than_its_budget_is_told_with_the_field_to_raise(line):
    slow = {**spec(line)["server"], "resources": {"limits": {"cpu": "200m"}}}
    apply(line, startup={"timeout": "1m"}, server=slow)
    line.wait_for_reason(NAME, "LoadingModel")
    message = line.wait_for_reason(NAME, "Restarting", kind="Degraded")
    assert "Last: StartupTimeout: the server gave no answer within spec.startup.timeout (1m)" in message
    assert message in described(line)


def test_a_crash_loop_takes_the_place_of_the_former_reason(line):
    apply(line, server={**spec(line)["server"], "extraArgs": ["--no-such-flag"]})
    assert "--no-such-flag" in line.wait_for_reason(NAME, "BadArgument")
    assert "StartupTimeout" not in described(line)


def test_a_good_spec_after_a_crash_loop_serves_and_no_former_reason_stays(line, serving):
    value = line.get(NAME)
    assert value["status"]["ready"] == "1/1"
    assert condition(value, "Degraded")["status"] == "False"
    for former in ("StartupTimeout", "BadArgument", "no-such-flag", "Restarting"):
        assert former not in json.dumps(value["status"])


def signal_scheduler(line, name):
    pod = pod_name(line.kubectl, line.namespace, NAME)
    command = ["exec", pod, "-n", line.namespace, "-c", "server", "--", "python3", "-c", SIGNAL, name]
    assert line.kubectl.run(*command).strip() == "1"


@contextlib.contextmanager
def generation(url):
    """A streamed generation that goes on for the whole block, which gets the list of what has arrived so far."""
    arrived: list[bytes] = []
    body = {"text": "Why?", "stream": True, "sampling_params": {"max_new_tokens": 15000, "ignore_eos": True}}
    connection = http.client.HTTPConnection(url.removeprefix("http://"))
    connection.request("POST", "/generate", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    reader = threading.Thread(target=lambda: arrived.extend(iter(answer.readline, b"")))
    reader.start()
    yield arrived
    connection.sock.shutdown(socket.SHUT_RDWR)
    reader.join()


def test_a_rank_that_hangs_in_a_generation_is_told_and_no_longer_than_it_hangs(line, serving):
    before = pods(line)
    with line.forwarded(NAME, 30000) as url, generation(url) as arrived:
        line.wait_for_reason(NAME, "AsExpected", kind="DecodeHealthy")
        signal_scheduler(line, "SIGSTOP")
        try:
            message = line.wait_for_reason(NAME, "RankSilent", kind="DecodeHealthy")
            assert "rank 0 writes no figures any more" in message
            value = line.get(NAME)
            # Readiness does not ask the ranks: a slow step must not take a server out of its Service.
            assert condition(value, "Available")["status"] == "True"
            assert condition(value, "BackendVerified")["status"] == "Unknown"
            stood = len(arrived)
        finally:
            signal_scheduler(line, "SIGCONT")
        assert stood
        line.wait_for_reason(NAME, "AsExpected", kind="DecodeHealthy")
        wait_until(line, "the generation goes on", lambda: len(arrived) > stood)
    assert condition(line.get(NAME), "BackendVerified")["status"] == "True"
    assert "RankSilent" not in described(line)
    assert pods(line).keys() == before.keys()


def test_a_revert_in_mid_rollout_keeps_the_pod_that_serves(line, serving):
    """With surge: the new pod starts beside the old one on the same node."""
    [serves] = pods(line)
    apply(line, rollout={"surge": True}, maxRunningRequests=3)
    wait_until(line, "a second pod is there", lambda: len(pods(line)) == 2)
    apply(line, rollout={"surge": True})
    wait_until(line, "the second pod is gone", lambda: len(pods(line)) == 1)
    line.wait_for_reason(NAME, "Complete", kind="Progressing")
    [(still, pod)] = pods(line).items()
    assert still == serves
    assert is_ready(pod)


def test_a_revert_on_a_full_node_keeps_the_pod_that_serves(line, serving):
    """Without surge one pod of two is given up at once, to free its GPUs: the one that does not serve yet."""
    [serves] = pods(line)
    apply(line, replicas=2)
    wait_until(line, "a second pod is there", lambda: len(pods(line)) == 2)
    apply(line, replicas=2, server={**spec(line)["server"], "image": "glm5.local/absent:1"})
    assert "glm5.local/absent:1" in line.wait_for_reason(NAME, "ImagePull", kind="Degraded")
    value = line.get(NAME)
    assert condition(value, "Available")["status"] == "True"
    assert value["status"]["ready"] == "1/2"
    apply(line, replicas=2)
    wait_until(line, "the refused image is gone", lambda: "absent" not in json.dumps(line.get(NAME)["status"]))
    assert condition(line.get(NAME), "Degraded")["status"] == "False"
    assert is_ready(pods(line)[serves])
    apply(line)
    wait_until(line, "one pod is left", lambda: len(pods(line)) == 1)
    assert is_ready(pods(line)[serves])


def test_a_lost_node_is_told_and_its_pod_replaced_when_it_is_back(line, serving):
    before = pods(line)
    # Kubernetes evicts nothing while it misses all the nodes that it counts, and this is the only one.
    line.kubectl.run("label", "node", NODE_NAME, "--overwrite", "node.kubernetes.io/exclude-disruption=true")
    node.stop_kubelet(line.target.layout)
    try:
        message = line.wait_for_reason(NAME, "NodeLost", seconds=LOST_SECONDS)
        assert "node node-1 does not answer" in message
        assert line.kubectl.run("get", "glm5", NAME, "-n", line.namespace).splitlines()[1].split()[1] == "0/1"
        wait_until(line, "the remedy is told", lambda: "out-of-service=nodeshutdown:NoExecute" in described(line))
        wait_until(line, "the lost pod goes on being listed, and its replacement waits", lambda: len(pods(line)) == 2)
    finally:
        node.start_kubelet(line.target.layout, build.folder(line.target.layout))
    wait_ready(line.kubectl, line.namespace, NAME, timeout=READY_SECONDS)
    assert "NodeLost" not in described(line)
    assert not before.keys() & pods(line).keys()
