"""Autoscaling on what a real Prometheus scraped: `make test-autoscaling`, not part of the default run.

By a real KEDA, and by `spec.autoscaling` with a real prometheus-adapter. Both are built from their Go modules first,
about eight minutes of two cores.
"""

import contextlib
import copy
import http.client
import json
import threading
import time

import pytest
import yaml

from autoscaling import install
from cluster.layout import REPOSITORY
from demo.deployment import explain, wait_ready

pytestmark = [pytest.mark.cluster, pytest.mark.autoscaling, pytest.mark.timeout(1800)]

NAME = "scaled"
SAMPLE = REPOSITORY / "manifests" / "samples" / "autoscaling-keda.yaml"
READY_SECONDS = 300


@pytest.fixture(scope="module")
def scaled(line):
    """A server of one pod that decodes one request at a time."""
    line.apply(server(line))
    wait_ready(line.kubectl, line.namespace, NAME, timeout=READY_SECONDS)
    yield NAME
    line.delete(NAME)


@pytest.fixture(scope="module")
def keda(line):
    install.keda(line.target)


@pytest.fixture(scope="module")
def adapter(line):
    install.prometheus_adapter(line.target)


def server(line, **more):
    """The object of that server; `more` are further fields of its spec."""
    return {
        "apiVersion": "glm5.dev/v1alpha1",
        "kind": "GLM5Deployment",
        "metadata": {"name": NAME},
        "spec": {
            "model": {"source": {"persistentVolumeClaim": {"claimName": "tiny-model"}}},
            "gpus": {"count": 1},
            "kvCache": {"maxTokens": 20000},
            "maxRunningRequests": 1,
            "server": {
                "image": line.images["server-cpu"],
                "toolCallParser": "",
                "reasoningParser": "",
                # An idle scheduler takes a whole core: two would leave none to the API server, and KEDA ends when
                # its lease gets no answer for 5 s.
                "resources": {"limits": {"cpu": "700m"}},
            },
            "sharedMemory": "1Gi",
            "drain": {"gracePeriod": "5s"},
            **more,
        },
    }


def scaled_object(line, trigger, threshold):
    """The sample with the test's names, one of its triggers, and no patience on the way down."""
    made = yaml.safe_load(SAMPLE.read_text())
    made["metadata"] = {"name": NAME, "namespace": line.namespace}
    spec = made["spec"]
    spec["scaleTargetRef"]["name"] = NAME
    spec["pollingInterval"] = 5
    spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]["stabilizationWindowSeconds"] = 0
    chosen = copy.deepcopy(spec["triggers"][trigger])
    chosen["metadata"]["threshold"] = threshold
    query = chosen["metadata"]["query"]
    chosen["metadata"]["query"] = query.replace('"default"', f'"{line.namespace}"').replace('"glm5"', f'"{NAME}"')
    spec["triggers"] = [chosen]
    return made


@contextlib.contextmanager
def load(url, clients=6):
    """Generations one after another by several clients at once, until the block ends."""
    stop = threading.Event()

    def send():
        body = json.dumps({"text": "Why?", "sampling_params": {"max_new_tokens": 100, "ignore_eos": True}})
        while not stop.is_set():
            connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=120)
            with contextlib.suppress(OSError, http.client.HTTPException):  # a pod that goes breaks its connections off
                connection.request("POST", "/generate", body, {"Content-Type": "application/json"})
                connection.getresponse().read()
            connection.close()

    threads = [threading.Thread(target=send) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def pods(line):
    chosen = ("pods", "-n", line.namespace, "-l", f"glm5.dev/deployment={NAME}")
    return {pod["metadata"]["name"] for pod in line.kubectl.get(*chosen)["items"]}


def wait_for_replicas(line, wanted, *, seconds, ready=1):
    deadline = time.monotonic() + seconds
    while True:
        value = line.get(NAME)
        status = value["status"]
        if (value["spec"]["replicas"], status["replicas"], status["readyReplicas"]) == (wanted, wanted, ready):
            return
        scaler = line.kubectl.try_run("describe", "hpa,scaledobject", "-n", line.namespace).stdout
        assert time.monotonic() < deadline, f"not {wanted} replicas after {seconds} s: {explain(value)}\n{scaler}"
        time.sleep(2)


@pytest.mark.parametrize(("trigger", "threshold"), [(0, "2"), (1, "5")], ids=["requests", "tokens"])
def test_keda_makes_a_second_pod_under_load_and_takes_it_away_again(line, scaled, keda, trigger, threshold):
    [first] = pods(line)
    line.apply(scaled_object(line, trigger, threshold))
    try:
        with line.forwarded(NAME, 30000) as url, load(url):
            wait_for_replicas(line, 2, seconds=READY_SECONDS, ready=2)
        wait_for_replicas(line, 1, seconds=180)
    finally:
        line.kubectl.run("delete", "scaledobjects.keda.sh", NAME, "-n", line.namespace, "--ignore-not-found")
    assert pods(line) == {first}, "the pod that served from the start is the one that stays"
    wait_ready(line.kubectl, line.namespace, NAME, timeout=60)


@pytest.mark.parametrize(("target", "value"), [("targetQueueLength", 1), ("targetTokensPerSecond", 5)])
def test_the_objects_own_autoscaler_makes_a_second_pod_under_load(line, scaled, adapter, target, value):
    [first] = pods(line)
    line.apply(server(line, autoscaling={"maxReplicas": 2, target: value}))
    try:
        with line.forwarded(NAME, 30000) as url, load(url):
            line.wait_for_reason(NAME, "ValidMetricFound", kind="ScalingActive")
            wait_for_replicas(line, 2, seconds=READY_SECONDS, ready=2)
    finally:
        # Its own way down takes Kubernetes' five minutes.
        line.apply(server(line))
        line.kubectl.run("scale", "glm5", NAME, "-n", line.namespace, "--replicas=1")
    wait_for_replicas(line, 1, seconds=180)
    assert pods(line) == {first}, "the pod that served from the start is the one that stays"
