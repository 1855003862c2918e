"""The operator against a real API server and the real controllers of Kubernetes."""

import json

from harness import eventually
from objects import condition, glm5


def object_of(kubectl, namespace, name="glm5"):
    return kubectl.get("glm5", name, "-n", namespace)


def events_of(kubectl, namespace):
    found = kubectl.get("events", "-n", namespace, "--field-selector=involvedObject.kind=GLM5Deployment")["items"]
    return [(event["reason"], event["message"]) for event in found]


def settled(kubectl, namespace, name="glm5"):
    """The object once its status speaks of its present spec."""

    def look():
        body = object_of(kubectl, namespace, name)
        return body if body.get("status", {}).get("observedGeneration") == body["metadata"]["generation"] else None

    return eventually(look, "status of the current generation")


def wanted_replicas(kubectl, namespace):
    return kubectl.get("deployment", "glm5", "-n", namespace)["spec"]["replicas"]


def test_an_object_becomes_a_deployment_and_a_service_and_says_what_it_waits_for(kubectl, namespace, start_operator):
    start_operator()
    kubectl.run("apply", "-f", "-", text=glm5(namespace))

    def waits():
        body = object_of(kubectl, namespace)
        return body if condition(body, "Available").get("reason") == "Unschedulable" else None

    body = eventually(waits, "the scheduler's words in Available")
    assert condition(body, "Available")["status"] == "False"
    assert "no nodes available" in condition(body, "Available")["message"]
    assert body["status"]["ready"] == "0/1"
    assert body["status"]["url"] == f"http://glm5.{namespace}.svc:30000"
    assert kubectl.get("service", "glm5", "-n", namespace)["spec"]["ports"][0]["port"] == 30000
    assert [reason for reason, _ in events_of(kubectl, namespace)].count("Created") == 1


def test_a_changed_spec_reaches_the_pod_template(kubectl, namespace, start_operator):
    start_operator()
    kubectl.run("apply", "-f", "-", text=glm5(namespace))
    eventually(lambda: kubectl.find("deployment", "glm5", "-n", namespace), "a Deployment")
    kubectl.run("apply", "-f", "-", text=glm5(namespace, attention={"kvCast": "WholePool"}, contextLength=4096))

    def updated():
        server = kubectl.get("deployment", "glm5", "-n", namespace)["spec"]["template"]["spec"]["containers"][0]
        return "4096" in server["args"] and {"name": "GLM5_KV_CAST", "value": "WholePool"} in server["env"]

    eventually(updated, "the new arguments and cast mode")


def test_a_child_scaled_edited_or_deleted_by_hand_is_restored_with_an_event(kubectl, namespace, start_operator):
    start_operator()
    kubectl.run("apply", "-f", "-", text=glm5(namespace))
    eventually(lambda: kubectl.find("deployment", "glm5", "-n", namespace), "a Deployment")
    settled(kubectl, namespace)

    kubectl.run("scale", "deployment", "glm5", "--replicas=3", "-n", namespace)
    eventually(lambda: wanted_replicas(kubectl, namespace) == 1, "one replica again")

    kubectl.run("set", "image", "deployment/glm5", "server=other:1", "-n", namespace)

    def image():
        return kubectl.get("deployment", "glm5", "-n", namespace)["spec"]["template"]["spec"]["containers"][0]["image"]

    eventually(lambda: image() != "other:1", "the image again")

    before = kubectl.get("service", "glm5", "-n", namespace)["metadata"]["uid"]
    kubectl.run("delete", "service", "glm5", "-n", namespace)
    eventually(
        lambda: (
            (kubectl.find("service", "glm5", "-n", namespace) or {}).get("metadata", {}).get("uid", before) != before
        ),
        "a new Service",
    )
    restored = [message for reason, message in events_of(kubectl, namespace) if reason == "Restored"]
    assert len(restored) == 3
    assert any("Service" in message for message in restored)


def test_annotations_and_restarts_of_others_are_left_alone(kubectl, namespace, start_operator):
    operator = start_operator()
    kubectl.run("apply", "-f", "-", text=glm5(namespace))
    eventually(lambda: kubectl.find("deployment", "glm5", "-n", namespace), "a Deployment")
    kubectl.run("rollout", "restart", "deployment/glm5", "-n", namespace)
    kubectl.run("annotate", "service", "glm5", "team=blue", "-n", namespace)
    eventually(lambda: operator.metric("glm5_operator_queue_depth") == 0, "an empty queue")
    template = kubectl.get("deployment", "glm5", "-n", namespace)["spec"]["template"]
    assert "kubectl.kubernetes.io/restartedAt" in template["metadata"]["annotations"]
    assert kubectl.get("service", "glm5", "-n", namespace)["metadata"]["annotations"]["team"] == "blue"


def test_scaling_the_object_is_followed_to_zero_and_back(kubectl, namespace, start_operator):
    start_operator()
    kubectl.run("apply", "-f", "-", text=glm5(namespace))
    eventually(lambda: wanted_replicas(kubectl, namespace) == 1, "one replica")
    kubectl.run("scale", "glm5", "glm5", "--replicas=3", "-n", namespace)
    eventually(lambda: wanted_replicas(kubectl, namespace) == 3, "three replicas")
    eventually(lambda: kubectl.find("pdb", "glm5", "-n", namespace), "a budget")
    assert object_of(kubectl, namespace)["status"]["selector"]
    kubectl.run("scale", "glm5", "glm5", "--replicas=0", "-n", namespace)
    eventually(lambda: object_of(kubectl, namespace)["status"]["state"] == "Stopped", "state Stopped")
    assert condition(object_of(kubectl, namespace), "Available")["reason"] == "Stopped"
    assert kubectl.find("pdb", "glm5", "-n", namespace) is None
    kubectl.run("scale", "glm5", "glm5", "--replicas=1", "-n", namespace)
    eventually(lambda: object_of(kubectl, namespace)["status"]["replicas"] == 1, "a pod")


def test_autoscaling_makes_an_autoscaler_of_the_object_and_removes_it_again(kubectl, namespace, start_operator):
    start_operator()
    kubectl.run("apply", "-f", "-", text=glm5(namespace, autoscaling={"maxReplicas": 3, "targetTokensPerSecond": 100}))
    scaler = eventually(lambda: kubectl.find("hpa", "glm5", "-n", namespace), "an autoscaler")
    assert scaler["spec"]["scaleTargetRef"]["kind"] == "GLM5Deployment"

    def able():
        conditions = kubectl.get("hpa", "glm5", "-n", namespace).get("status", {}).get("conditions", [])
        return [entry["status"] for entry in conditions if entry["type"] == "AbleToScale"] == ["True"]

    eventually(able, "Kubernetes reads the object's /scale", 60)

    def judged():
        found = condition(object_of(kubectl, namespace), "ScalingActive")
        return found if found.get("status") == "False" else None

    # No adapter serves custom metrics here: Kubernetes then scales nothing, and only the autoscaler itself says so.
    assert "no adapter serves custom metrics" in eventually(judged, "what the autoscaler lacks", 60)["message"]
    kubectl.run("apply", "-f", "-", text=glm5(namespace))
    eventually(lambda: kubectl.find("hpa", "glm5", "-n", namespace) is None, "no autoscaler")
    eventually(lambda: not condition(object_of(kubectl, namespace), "ScalingActive"), "no word of an autoscaler")


def test_deleting_the_object_deletes_its_children_even_without_an_operator(kubectl, namespace, start_operator):
    operator = start_operator()
    kubectl.run("apply", "-f", "-", text=glm5(namespace))
    eventually(lambda: kubectl.find("deployment", "glm5", "-n", namespace), "a Deployment")
    assert "finalizers" not in object_of(kubectl, namespace)["metadata"]
    operator.stop()
    kubectl.run("delete", "glm5", "glm5", "-n", namespace, "--timeout=20s")
    eventually(lambda: kubectl.find("deployment", "glm5", "-n", namespace) is None, "no Deployment")
    eventually(lambda: kubectl.find("service", "glm5", "-n", namespace) is None, "no Service")


def test_an_object_made_anew_with_the_same_name_gets_children_of_its_own(kubectl, namespace, start_operator):
    start_operator()
    kubectl.run("apply", "-f", "-", text=glm5(namespace))
    eventually(lambda: kubectl.find("deployment", "glm5", "-n", namespace), "a Deployment")
    kubectl.run("delete", "glm5", "glm5", "-n", namespace)
    kubectl.run("apply", "-f", "-", text=glm5(namespace))
    uid = object_of(kubectl, namespace)["metadata"]["uid"]

    def owned():
        deployment = kubectl.find("deployment", "glm5", "-n", namespace)
        return deployment and [owner["uid"] for owner in deployment["metadata"]["ownerReferences"]] == [uid]

    eventually(owned, "a Deployment of the new object", 60)
    eventually(
        lambda: condition(object_of(kubectl, namespace), "Degraded").get("status") == "False", "no complaint", 60
    )


def test_a_stranger_with_the_childs_name_is_not_taken_over(kubectl, namespace, start_operator):
    start_operator()
    kubectl.run("create", "service", "clusterip", "glm5", "--tcp=80:80", "-n", namespace)
    kubectl.run("apply", "-f", "-", text=glm5(namespace))
    body = eventually(
        lambda: (
            condition(object_of(kubectl, namespace), "Degraded").get("reason") == "NameTaken"
            and object_of(kubectl, namespace)
        ),
        "Degraded because of NameTaken",
    )
    assert "Service glm5 was made by somebody else" in condition(body, "Degraded")["message"]
    assert kubectl.get("service", "glm5", "-n", namespace)["spec"]["ports"][0]["port"] == 80
    kubectl.run("delete", "service", "glm5", "-n", namespace)
    eventually(
        lambda: condition(object_of(kubectl, namespace), "Degraded")["status"] == "False", "the complaint gone", 60
    )


def test_a_host_path_is_refused_unless_the_chart_allows_it(kubectl, namespace, start_operator):
    operator = start_operator()
    source = {"hostPath": {"path": "/data"}}
    kubectl.run("apply", "-f", "-", text=glm5(namespace, model={"source": source}))
    eventually(lambda: object_of(kubectl, namespace)["status"]["state"] == "Refused", "state Refused")
    message = condition(object_of(kubectl, namespace), "Progressing")["message"]
    assert "spec.model.source.hostPath" in message
    assert "allowHostPath=true" in message
    assert kubectl.find("deployment", "glm5", "-n", namespace) is None
    operator.stop()
    start_operator(GLM5_OPERATOR_ALLOW_HOST_PATH="true")
    eventually(lambda: kubectl.find("deployment", "glm5", "-n", namespace), "a Deployment")
    eventually(lambda: object_of(kubectl, namespace)["status"]["state"] != "Refused", "no longer Refused")


def test_a_quota_that_forbids_the_pods_is_said(kubectl, namespace, start_operator):
    start_operator()
    kubectl.run("create", "quota", "no-gpus", "--hard=requests.nvidia.com/gpu=4", "-n", namespace)
    kubectl.run("apply", "-f", "-", text=glm5(namespace))
    eventually(
        lambda: condition(object_of(kubectl, namespace), "Degraded").get("reason") == "QuotaExceeded",
        "Degraded because of QuotaExceeded",
    )
    assert "no-gpus" in condition(object_of(kubectl, namespace), "Degraded")["message"]


def test_a_namespace_with_pod_security_restricted_takes_the_pods(kubectl, namespace, start_operator):
    kubectl.run("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    start_operator()
    kubectl.run("apply", "-f", "-", text=glm5(namespace))
    eventually(lambda: object_of(kubectl, namespace)["status"].get("replicas") == 1, "a pod")


def test_an_edit_by_an_older_client_that_drops_status_is_repaired(kubectl, namespace, start_operator):
    start_operator()
    kubectl.run("apply", "-f", "-", text=glm5(namespace))
    settled(kubectl, namespace)
    patch = json.dumps({"status": {"state": "Lies", "ready": "9/9"}})
    kubectl.run("patch", "glm5", "glm5", "-n", namespace, "--subresource=status", "--type=merge", "-p", patch)
    eventually(lambda: object_of(kubectl, namespace)["status"]["ready"] == "0/1", "the truth again")


def test_two_operators_take_turns(kubectl, namespace, start_operator):
    first = start_operator()
    second = start_operator(wait=False)
    kubectl.run("apply", "-f", "-", text=glm5(namespace))
    settled(kubectl, namespace)
    eventually(lambda: second.serves, "the second serves its metrics")
    assert second.metric("glm5_operator_leader") == 0
    assert second.metric("glm5_operator_api_requests_total", method="PATCH") == 0
    assert first.stop() == 0
    eventually(lambda: second.acts, "the second acts soon after the first has let go", 25)
    second.kill()
    third = start_operator(wait=False)
    eventually(lambda: third.acts, "the third acts once the killed one's Lease has expired", 60)
    kubectl.run("scale", "glm5", "glm5", "--replicas=2", "-n", namespace)
    eventually(lambda: wanted_replicas(kubectl, namespace) == 2, "two replicas")


def test_an_idle_operator_writes_nothing_but_its_lease(kubectl, namespace, start_operator):
    import time

    operator = start_operator(GLM5_OPERATOR_SWEEP_SECONDS="2")
    for number in range(10):
        kubectl.run("apply", "-f", "-", text=glm5(namespace, f"glm5-{number}", replicas=0))
    eventually(lambda: operator.metric("glm5_operator_deployments", state="Stopped") == 10, "all objects are Stopped")
    time.sleep(3)
    writes = ("PATCH", "POST", "DELETE")
    before = {method: operator.metric("glm5_operator_api_requests_total", method=method) for method in writes}
    passes = operator.metric("glm5_operator_reconcile_total")
    time.sleep(15)
    assert operator.metric("glm5_operator_reconcile_total") >= passes + 50
    assert {method: operator.metric("glm5_operator_api_requests_total", method=method) for method in writes} == before


def test_metrics_of_a_deleted_object_are_gone(kubectl, namespace, start_operator):
    operator = start_operator()
    kubectl.run("apply", "-f", "-", text=glm5(namespace))
    eventually(lambda: operator.metric("glm5_deployment_condition", deployment="glm5") > 0, "series")
    kubectl.run("delete", "glm5", "glm5", "-n", namespace)
    eventually(lambda: operator.metric("glm5_deployment_condition", deployment="glm5") == 0, "no series")
    assert operator.metric("glm5_operator_deployments") == 0


def test_weights_that_plainly_cannot_fit_are_told_and_the_pod_is_made_all_the_same(kubectl, namespace, start_operator):
    start_operator()
    source = {"huggingFace": {"repo": "zai-org/GLM-5", "cacheClaimName": "models"}}
    gpus = {"product": "NVIDIA-H200"}
    kubectl.run("apply", "-f", "-", text=glm5(namespace, model={"source": source}, gpus=gpus))
    told = eventually(lambda: condition(object_of(kubectl, namespace), "FitsGPUs"), "a word on the size")
    assert (told["status"], told["reason"]) == ("False", "TooLarge")
    assert "165 GiB of weights" in told["message"]
    assert kubectl.find("deployment", "glm5", "-n", namespace)
    eventually(lambda: "TooLarge" in [reason for reason, _ in events_of(kubectl, namespace)], "an event")

    source = {"huggingFace": {"repo": "zai-org/GLM-5-FP8", "cacheClaimName": "models"}}
    kubectl.run("apply", "-f", "-", text=glm5(namespace, model={"source": source}, gpus=gpus))
    eventually(lambda: condition(object_of(kubectl, namespace), "FitsGPUs")["status"] == "True", "FP8 weights fit")
