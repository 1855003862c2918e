"""Changes that come in the middle of another: what serves goes on serving.

Kubernetes' own controllers make ReplicaSets and pods here. There is no node: the tests say which pods are ready.
"""

import json
import time

import pytest
from harness import eventually
from objects import condition, glm5

# No scheduler takes these pods, so that nobody but the test writes their status.
BY_HAND = {"podTemplate": {"spec": {"schedulerName": "nobody"}}}
CHOSEN = "glm5.dev/deployment=glm5"


def spec(namespace, **fields):
    return glm5(namespace, **BY_HAND, **fields)


def pods_of(kubectl, namespace):
    """The pods that are to stay: uid to (name, template hash, ready)."""
    found = {}
    for pod in kubectl.get("pods", "-n", namespace, "-l", CHOSEN)["items"]:
        if "deletionTimestamp" not in pod["metadata"]:
            conditions = {entry["type"]: entry["status"] for entry in pod.get("status", {}).get("conditions", [])}
            labels = pod["metadata"]["labels"]
            found[pod["metadata"]["uid"]] = (
                pod["metadata"]["name"],
                labels["pod-template-hash"],
                conditions.get("Ready") == "True",
            )
    return found


def make_ready(kubectl, namespace, name):
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    ready = [
        {"type": kind, "status": "True", "lastTransitionTime": now}
        for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    ]
    patch = json.dumps({"status": {"phase": "Running", "conditions": ready}})
    kubectl.run("patch", "pod", name, "-n", namespace, "--subresource=status", "--type=merge", "-p", patch)


def status_of(kubectl, namespace):
    body = kubectl.get("glm5", "glm5", "-n", namespace)
    assert body["status"]["observedGeneration"] == body["metadata"]["generation"]
    return body["status"]


def all_ready(kubectl, namespace, count):
    """Makes pods ready as they come until the object is complete with so many. Returns them."""

    def look():
        for name, _, ready in pods_of(kubectl, namespace).values():
            if not ready:
                make_ready(kubectl, namespace, name)
        status = status_of(kubectl, namespace)
        return status["ready"] == f"{count}/{count}" and status["state"] == "Ready"

    eventually(look, f"{count} ready pods and state Ready", 60)
    return pods_of(kubectl, namespace)


def in_the_middle(kubectl, namespace, served):
    """Waits until one pod of those that served is left beside a new one that is not ready. Returns the first's uid."""

    def look():
        now = pods_of(kubectl, namespace)
        left, new = now.keys() & served.keys(), now.keys() - served.keys()
        return list(left) if len(left) == 1 and len(new) == 1 else None

    return eventually(look, "one old and one new pod", 60)[0]


def test_a_revert_in_the_middle_of_a_rollout_keeps_the_pods_that_serve(kubectl, namespace, start_operator):
    start_operator()
    kubectl.run("apply", "-f", "-", text=spec(namespace, replicas=2))
    served = all_ready(kubectl, namespace, 2)
    template = {hash_ for _, hash_, _ in served.values()}

    kubectl.run("apply", "-f", "-", text=spec(namespace, replicas=2, contextLength=4096))
    survivor = in_the_middle(kubectl, namespace, served)
    eventually(lambda: status_of(kubectl, namespace)["ready"] == "1/2", "one of two pods ready")

    kubectl.run("apply", "-f", "-", text=spec(namespace, replicas=2))
    after = all_ready(kubectl, namespace, 2)
    assert survivor in after
    assert {hash_ for _, hash_, _ in after.values()} == template, "the former ReplicaSet is used again"


def test_a_revert_of_a_rollout_with_surge_replaces_nothing(kubectl, namespace, start_operator):
    start_operator()
    surge = {"rollout": {"surge": True}}
    kubectl.run("apply", "-f", "-", text=spec(namespace, **surge))
    served = all_ready(kubectl, namespace, 1)
    kubectl.run("apply", "-f", "-", text=spec(namespace, contextLength=4096, **surge))
    in_the_middle(kubectl, namespace, served)
    kubectl.run("apply", "-f", "-", text=spec(namespace, **surge))
    eventually(lambda: pods_of(kubectl, namespace) == served, "the pod that served, alone", 60)
    eventually(lambda: status_of(kubectl, namespace)["state"] == "Ready", "state Ready")


def test_another_change_in_the_middle_of_a_rollout_ends_only_pods_that_do_not_serve(kubectl, namespace, start_operator):
    start_operator()
    kubectl.run("apply", "-f", "-", text=spec(namespace, replicas=2))
    served = all_ready(kubectl, namespace, 2)

    kubectl.run("apply", "-f", "-", text=spec(namespace, replicas=2, contextLength=4096))
    survivor = in_the_middle(kubectl, namespace, served)
    second = pods_of(kubectl, namespace).keys() - served.keys()

    kubectl.run("apply", "-f", "-", text=spec(namespace, replicas=2, contextLength=8192))

    def replaced():
        now = pods_of(kubectl, namespace)
        return len(now) == 2 and survivor in now and not second & now.keys()

    eventually(replaced, "the pod that never served has given way to one of the newest spec", 60)
    assert condition(kubectl.get("glm5", "glm5", "-n", namespace), "Available")["status"] == "True"
    after = all_ready(kubectl, namespace, 2)
    assert survivor not in after
    eventually(lambda: status_of(kubectl, namespace)["updatedReplicas"] == 2, "two pods of the newest spec")


def test_scaling_and_what_is_not_the_pods_leave_serving_pods_alone(kubectl, namespace, start_operator):
    start_operator()
    kubectl.run("apply", "-f", "-", text=spec(namespace))
    served = all_ready(kubectl, namespace, 1)
    kubectl.run("apply", "-f", "-", text=spec(namespace, replicas=3, server={"serviceType": "NodePort"}))
    eventually(lambda: len(pods_of(kubectl, namespace)) == 3, "three pods", 60)
    assert served.keys() <= pods_of(kubectl, namespace).keys()
    kubectl.run("scale", "glm5", "glm5", "--replicas=1", "-n", namespace)
    eventually(lambda: pods_of(kubectl, namespace) == served, "the pod that serves, alone", 60)


@pytest.mark.parametrize("pause", [0, 0.2, 1])
def test_an_object_deleted_while_it_is_created_leaves_nothing(pause, kubectl, namespace, start_operator):
    operator = start_operator()
    kubectl.run("apply", "-f", "-", text=spec(namespace, replicas=2))
    time.sleep(pause)
    kubectl.run("delete", "glm5", "glm5", "-n", namespace)

    def nothing():
        kinds = "deployments,replicasets,pods,services,poddisruptionbudgets"
        return kubectl.get(kinds, "-n", namespace, "-l", CHOSEN)["items"] == []

    eventually(nothing, "no children", 60)
    time.sleep(3)
    assert nothing(), "a late write of the operator's made them again"
    assert operator.metric("glm5_operator_reconcile_total", result="error") == 0


def test_a_selector_that_cannot_be_changed_is_told_with_the_remedy_and_not_tried_hotly(
    kubectl, namespace, start_operator
):
    kubectl.run("apply", "-f", "-", text=spec(namespace))
    owner = kubectl.get("glm5", "glm5", "-n", namespace)["metadata"]["uid"]
    labels = {"app": "older-release"}
    former = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": "glm5",
            "namespace": namespace,
            "labels": {"glm5.dev/deployment": "glm5"},
            "ownerReferences": [
                {
                    "apiVersion": "glm5.dev/v1alpha1",
                    "kind": "GLM5Deployment",
                    "name": "glm5",
                    "uid": owner,
                    "controller": True,
                }
            ],
        },
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"schedulerName": "nobody", "containers": [{"name": "server", "image": "older:1"}]},
            },
        },
    }
    kubectl.run("apply", "-f", "-", text=json.dumps(former))
    before = kubectl.get("deployment", "glm5", "-n", namespace)["metadata"]["uid"]
    operator = start_operator()

    def refused():
        told = condition(kubectl.get("glm5", "glm5", "-n", namespace), "Degraded")
        return told if told.get("reason") == "ChildRefused" else None

    message = eventually(refused, "Degraded because of ChildRefused")["message"]
    assert "selector" in message
    assert "field is immutable" in message
    assert "Delete that Deployment, and it is made anew" in message
    assert kubectl.get("deployment", "glm5", "-n", namespace)["metadata"]["uid"] == before, "what it runs is kept"
    tried = operator.metric("glm5_operator_api_requests_total", kind="Deployment", code="422")
    time.sleep(8)
    more = operator.metric("glm5_operator_api_requests_total", kind="Deployment", code="422") - tried
    assert more <= 4, "pauses double from half a second"

    kubectl.run("delete", "deployment", "glm5", "-n", namespace)
    eventually(lambda: not refused() and pods_of(kubectl, namespace), "a Deployment of today", 90)
