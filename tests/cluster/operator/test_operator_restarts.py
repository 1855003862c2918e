"""The operator may die after any of its writes: the next one brings the same end."""

import asyncio
import json
import time

import pytest
from harness import eventually
from objects import glm5

from glm5_operator import handlers
from glm5_operator.cluster import Cluster
from glm5_operator.controller import Controller
from glm5_operator.metrics import Metrics
from glm5_operator.operator import utc_now
from glm5_operator.settings import Settings

SETTLE_SECONDS = 2.0


class Killed(BaseException):
    """Stands for SIGKILL right after the API server has taken a write."""


class MortalCluster(Cluster):
    """The real door to the API server, which ends its operator after so many writes."""

    writes = 0
    dies_after: int | None = None

    async def _request(self, method, path, kind, **parameters):
        answer = await super()._request(method, path, kind, **parameters)
        if method != "GET":
            self.writes += 1
            if self.writes == self.dies_after:
                raise Killed
        return answer


async def live(namespace, dies_after=None):
    """One life of an operator in the test's namespace: until it is killed, or until nothing happens any more.

    Returns the number of its writes.
    """
    metrics = Metrics()
    connected = await MortalCluster.connect(metrics, utc_now)
    connected.dies_after = dies_after
    settings = Settings(watch_namespaces=(namespace,), leader_election=False)
    controller = Controller(connected, settings, metrics, utc_now)
    death = asyncio.get_running_loop().create_future()
    begun = ended = 0

    async def handle(key):
        nonlocal begun, ended
        begun += 1
        try:
            return await controller.handle(key)
        finally:
            ended += 1

    async def work():
        try:
            await controller.queue.work(handle)
        except Killed:
            death.set_result(None)

    tasks = [asyncio.create_task(work()), asyncio.create_task(handlers.watch(controller, settings))]
    try:
        seen = None
        deadline = time.monotonic() + 120
        # Quiet: a pass was made, none is under way or waited for, nothing was written for a while, and all pods that
        # Kubernetes is to make are told of, which takes it long on a busy machine.
        while not death.done() and (
            not begun
            or begun != ended
            or seen != connected.writes
            or controller.queue.stalled_seconds > 0
            or not all_told(controller.store.get((namespace, "glm5")))
        ):
            assert time.monotonic() < deadline, f"not quiet within two minutes: {begun} passes, {seen} writes"
            seen = connected.writes
            await asyncio.wait({death}, timeout=SETTLE_SECONDS)
        return connected.writes
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await connected.close()


def all_told(body):
    """Whether the object's status speaks of its present spec and of all its pods."""
    status = body.get("status", {})
    return (status.get("observedGeneration"), status.get("replicas")) == (
        body["metadata"]["generation"],
        body["spec"]["replicas"],
    )


def outcome(kubectl, namespace):
    """What the object's children are and what its status says, without what differs from one run to the next."""
    found = {}
    for kind in ("deployment", "service", "pdb"):
        for item in kubectl.get(kind, "-n", namespace)["items"]:
            spec = {key: value for key, value in item["spec"].items() if not key.startswith("clusterIP")}
            found[kind] = (item["metadata"]["name"], item["metadata"]["labels"], spec)
    status = kubectl.get("glm5", "glm5", "-n", namespace)["status"]
    found["status"] = (status["ready"], status["replicas"], status["state"])
    return found


CHANGES = {
    "create": lambda namespace: glm5(namespace, replicas=2),
    "update": lambda namespace: glm5(namespace, replicas=2, contextLength=4096),
    "scale": lambda namespace: glm5(namespace, replicas=1, contextLength=4096),
}


@pytest.fixture
def kubeconfig(kubectl, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(kubectl.kubeconfig))


def settle(kubectl, namespace):
    eventually(
        lambda: (
            kubectl.get("glm5", "glm5", "-n", namespace).get("status", {}).get("observedGeneration")
            == kubectl.get("glm5", "glm5", "-n", namespace)["metadata"]["generation"]
        ),
        "a settled object",
    )


def gone(kubectl, namespace):
    """Waits for the end of all children: one of a former object still holds its name, which a new one waits for."""
    kinds = "deployments,services,poddisruptionbudgets,replicasets,pods"
    eventually(lambda: not kubectl.get(kinds, "-n", namespace)["items"], "no children")


@pytest.mark.timeout(1800)
def test_killed_after_any_write_of_create_update_and_scale_it_converges_to_the_same_end(kubectl, namespace, kubeconfig):
    reference = {}
    counts = {}
    for change, manifest in CHANGES.items():
        kubectl.run("apply", "-f", "-", text=manifest(namespace))
        counts[change] = asyncio.run(live(namespace))
        settle(kubectl, namespace)
        reference[change] = outcome(kubectl, namespace)
    assert counts["create"] >= 4, "Service, PodDisruptionBudget, Deployment and status"
    assert counts["update"] >= 2, "Deployment and status"
    assert counts["scale"] >= 3, "Deployment, PodDisruptionBudget and status"

    kubectl.run("delete", "glm5", "glm5", "-n", namespace)
    gone(kubectl, namespace)
    for change, manifest in CHANGES.items():
        for dies_after in range(1, counts[change] + 1):
            if change == "create":
                kubectl.run("delete", "glm5", "glm5", "-n", namespace, "--ignore-not-found")
                eventually(lambda: not kubectl.get("deployment", "-n", namespace)["items"], "no children")
                eventually(lambda: not kubectl.get("pods", "-n", namespace)["items"], "no pods")
            else:
                before = list(CHANGES)[list(CHANGES).index(change) - 1]
                kubectl.run("apply", "-f", "-", text=CHANGES[before](namespace))
                asyncio.run(live(namespace))
            kubectl.run("apply", "-f", "-", text=manifest(namespace))
            asyncio.run(live(namespace, dies_after))
            asyncio.run(live(namespace))
            settle(kubectl, namespace)
            assert outcome(kubectl, namespace) == reference[change], f"{change}, killed after write {dies_after}"


def test_a_restart_writes_no_event_about_values_that_the_server_writes_otherwise(kubectl, namespace, kubeconfig):
    kubectl.run("apply", "-f", "-", text=glm5(namespace, server={"resources": {"limits": {"memory": "2048Mi"}}}))
    asyncio.run(live(namespace))
    limits = kubectl.get("deployment", "glm5", "-n", namespace)["spec"]["template"]["spec"]["containers"][0][
        "resources"
    ]
    assert limits["limits"]["memory"] == "2Gi"
    asyncio.run(live(namespace))
    events = kubectl.get("events", "-n", namespace, "--field-selector=involvedObject.kind=GLM5Deployment")["items"]
    assert [event["reason"] for event in events] == ["Created"]


def test_a_list_key_of_the_api_is_ours_too(kubectl):
    """podTemplate is merged by keys written down in the code: here the API server's own OpenAPI says the same."""
    from glm5_operator.resources.pod_template import LIST_KEYS

    schemas = json.loads(kubectl.run("get", "--raw", "/openapi/v3/apis/apps/v1"))["components"]["schemas"]
    found = {}

    def walk(name, seen):
        for field, node in schemas[name].get("properties", {}).items():
            keys = node.get("x-kubernetes-list-map-keys") or [node.get("x-kubernetes-patch-merge-key")]
            if node.get("type") == "array" and keys[0]:
                found.setdefault(field, set()).add(tuple(keys))
            reference = node.get("items", node)
            for candidate in [reference, *reference.get("allOf", [])]:
                target = candidate.get("$ref", "").rpartition("/")[2]
                if target and target not in seen:
                    walk(target, seen | {target})

    walk("io.k8s.api.core.v1.PodSpec", {"io.k8s.api.core.v1.PodSpec"})
    found.pop("ephemeralContainers")  # a template may not hold any
    found.pop("ownerReferences")  # of the claim template inside an ephemeral volume
    assert found == {field: {keys} for field, keys in LIST_KEYS.items()}
