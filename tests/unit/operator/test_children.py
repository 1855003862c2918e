"""The objects around the pod, and which writes are needed."""

import copy

import pytest
import yaml
from builders import context

from cluster.layout import REPOSITORY
from glm5_operator.reconcile.difference import agrees, digest_of, projection, spec_hash
from glm5_operator.reconcile.plan import Applied, Apply, Delete, plan, wanted_children

UID = "uid-1"


def wanted(extra=None, *, monitor=False):
    return wanted_children(context(extra), pod_monitor_api=monitor)


def test_one_replica_gets_a_service_and_a_deployment_and_no_budget_that_blocks_drains():
    assert list(wanted()) == ["Deployment", "Service"]


def test_the_service_selects_the_pods_and_leads_to_their_http_port():
    children = wanted()
    template = children["Deployment"]["spec"]["template"]
    selector = children["Service"]["spec"]["selector"]
    assert selector
    assert selector.items() <= template["metadata"]["labels"].items()
    ports = {port["name"] for container in template["spec"]["containers"] for port in container["ports"]}
    assert children["Service"]["spec"]["ports"][0]["targetPort"] in ports


def test_several_replicas_get_a_disruption_budget():
    budget = wanted({"replicas": 2})["PodDisruptionBudget"]["spec"]
    assert budget["maxUnavailable"] == 1
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


@pytest.mark.parametrize(
    ("mode", "present", "made"),
    [("Auto", True, True), ("Auto", False, False), ("Always", False, True), ("Never", True, False)],
)
def test_a_pod_monitor_is_made_where_it_is_wanted_and_possible(mode, present, made):
    assert ("PodMonitor" in wanted({"monitoring": {"podMonitor": mode}}, monitor=present)) is made


def test_only_sglangs_own_series_are_relabelled_with_the_deployment():
    endpoints = {e["port"]: e for e in wanted(monitor=True)["PodMonitor"]["spec"]["podMetricsEndpoints"]}
    assert "relabelings" not in endpoints["metrics"]
    assert endpoints["http"]["relabelings"] == [
        {"sourceLabels": ["__meta_kubernetes_pod_label_glm5_dev_deployment"], "targetLabel": "deployment"}
    ]


def test_the_autoscaler_scales_the_object_so_that_nobody_fights_over_the_deployment():
    scaler = wanted({"autoscaling": {"maxReplicas": 4, "targetQueueLength": 10}})["HorizontalPodAutoscaler"]["spec"]
    assert scaler["scaleTargetRef"] == {"apiVersion": "glm5.dev/v1alpha1", "kind": "GLM5Deployment", "name": "glm5"}
    assert scaler["metrics"][0]["pods"]["metric"]["name"] == "sglang:num_queue_reqs"


def test_every_child_belongs_to_its_object_and_carries_the_labels():
    for child in wanted({"replicas": 2}, monitor=True).values():
        owner = child["metadata"]["ownerReferences"][0]
        assert (owner["uid"], owner["controller"]) == (UID, True)
        assert child["metadata"]["labels"]["glm5.dev/deployment"] == "glm5"
        assert child["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "glm5-operator"


def test_nothing_is_written_while_the_server_agrees():
    children = wanted()
    live = copy.deepcopy(children)
    live["Deployment"]["spec"]["template"]["spec"]["schedulerName"] = "default-scheduler"
    live["Deployment"]["spec"]["template"]["spec"]["containers"].insert(0, {"name": "injected"})
    assert plan(children, live, {}, UID) == []


def test_a_child_changed_by_hand_is_restored():
    children = wanted()
    live = copy.deepcopy(children)
    live["Deployment"]["spec"]["replicas"] = 5
    assert plan(children, live, {}, UID) == [Apply(children["Deployment"], restores=True)]


def test_a_child_deleted_by_hand_is_restored():
    children = wanted()
    applied = {kind: Applied(spec_hash(child), digest_of(child)) for kind, child in children.items()}
    live = {"Deployment": children["Deployment"]}
    assert plan(children, live, applied, UID) == [Apply(children["Service"], restores=True)]


def test_a_changed_spec_is_no_restoration():
    live, children = wanted(), wanted({"contextLength": 4096})
    assert plan(children, live, {}, UID) == [Apply(children["Deployment"], restores=False)]


def test_a_field_that_is_no_longer_sent_is_noticed():
    live, children = wanted({"server": {"extraArgs": ["--x"], "env": [{"name": "A", "value": "1"}]}}), wanted()
    assert [action.manifest["kind"] for action in plan(children, live, {}, UID)] == ["Deployment"]


def test_a_value_that_the_server_rewrites_is_sent_once_and_not_for_ever():
    children = wanted()
    rewritten = copy.deepcopy(children)
    rewritten["Deployment"]["spec"]["template"]["spec"]["containers"][0]["image"] = "mirror/image:1"
    result = digest_of(projection(rewritten["Deployment"], children["Deployment"]))
    applied = {"Deployment": Applied(spec_hash(children["Deployment"]), result)}
    assert plan(children, rewritten, applied, UID) == []
    assert [a.manifest["kind"] for a in plan(children, rewritten, {}, UID)] == ["Deployment"]


def test_a_child_no_longer_wanted_is_deleted_unless_it_is_somebody_elses():
    live = wanted({"replicas": 2})
    assert plan(wanted(), {**live, **wanted()}, {}, UID) == [Delete("PodDisruptionBudget", "glm5")]
    stranger = copy.deepcopy(live["PodDisruptionBudget"])
    stranger["metadata"]["ownerReferences"] = []
    assert plan(wanted(), {**wanted(), "PodDisruptionBudget": stranger}, {}, UID) == []


def test_lists_are_compared_by_their_keys_and_not_by_position():
    assert agrees({"a": [{"name": "y", "v": 2}, {"name": "x", "v": 1}]}, {"a": [{"name": "x", "v": 1}]})
    assert not agrees({"a": [{"name": "x", "v": 2}]}, {"a": [{"name": "x", "v": 1}]})
    assert not agrees({"a": ["1", "2"]}, {"a": ["1"]})


@pytest.mark.parametrize("target", ["targetTokensPerSecond", "targetQueueLength"])
def test_the_adapters_rules_serve_each_metric_that_an_autoscaler_of_ours_asks_for(target):
    autoscaler = wanted({"autoscaling": {"maxReplicas": 2, target: 5}})["HorizontalPodAutoscaler"]
    [metric] = [entry["pods"]["metric"]["name"] for entry in autoscaler["spec"]["metrics"]]
    sample = REPOSITORY / "manifests" / "samples" / "autoscaling-prometheus-adapter.yaml"
    rules = yaml.safe_load(yaml.safe_load(sample.read_text())["data"]["config.yaml"])["rules"]
    assert metric in [rule["seriesQuery"].partition("{")[0] for rule in rules]
