"""What the API server says of an object: defaults, and refusals that name field and remedy."""

import pytest
from objects import CLAIM_SOURCE, glm5

REFUSED = {
    "two model sources": (
        {"model": {"source": {**CLAIM_SOURCE, "image": {"reference": "r/m:1"}}}},
        "give exactly one of persistentVolumeClaim, hostPath, image or huggingFace in spec.model.source",
    ),
    "no model source": ({"model": {"source": {}}}, "give exactly one of persistentVolumeClaim"),
    "no model": ({"model": None}, "spec.model: Required value"),
    "a negative count": ({"gpus": {"count": -8}}, "spec.gpus.count: Invalid value: -8"),
    "negative replicas": ({"replicas": -1}, "spec.replicas: Invalid value: -1"),
    "more ranks than GPUs": (
        {"gpus": {"count": 2, "tensorParallelSize": 8}},
        "spec.gpus.tensorParallelSize is larger than spec.gpus.count",
    ),
    "a cast of a BF16 cache": (
        {"kvCache": {"dtype": "bfloat16"}, "attention": {"kvCast": "WholePool"}},
        "set kvCast: Never or spec.kvCache.dtype: fp8_e4m3",
    ),
    "a cast with sparse attention": (
        {"attention": {"algorithm": "Sparse", "kvCast": "ActiveRows"}},
        "set kvCast: Never or algorithm: Dense",
    ),
    "an unknown cast mode": ({"attention": {"kvCast": "Sometimes"}}, '"Never", "ActiveRows", "WholePool"'),
    "an unknown field": ({"kvcast": "Never"}, 'unknown field "spec.kvcast"'),
    "a path out of the source": ({"model": {"source": CLAIM_SOURCE, "path": "../x"}}, "spec.model.path is relative"),
    "a startup of no time": ({"startup": {"timeout": "5s"}}, "spec.startup.timeout must lie between 1m and 24h"),
    "a duration in words": ({"startup": {"timeout": "two hours"}}, "spec.startup.timeout"),
    "a drain of more than a day": ({"drain": {"gracePeriod": "25h"}}, "spec.drain.gracePeriod must lie between"),
    "the exporter's port": ({"server": {"port": 9408}}, "9408 belongs to the exporter"),
    "an argument that a field owns": (
        {"server": {"extraArgs": ["--tp=4"]}},
        "extraArgs must not contain --tp-size, --tensor-parallel-size, --tp: use spec.gpus.tensorParallelSize",
    ),
    "a file of arguments": (
        {"server": {"extraArgs": ["--config", "/models/model/server.yaml"]}},
        "spec.server.extraArgs must not contain --config",
    ),
    "a second node": ({"server": {"extraArgs": ["--nnodes=2"]}}, "a copy is one pod on one node"),
    "data parallelism": ({"server": {"extraArgs": ["--dp-size", "2"]}}, "spec.replicas for copies"),
    "an argument that a field owns, with a value of two lines": (
        {"server": {"extraArgs": ['--json-model-override-args={\n"index_topk": null}']}},
        "spec.server.extraArgs must not contain --json-model-override-args",
    ),
    "an API key as an argument": (
        {"server": {"extraArgs": ["--api-key", "x"]}},
        "use spec.server.apiKeySecretRef, which keeps the key out of the logs",
    ),
    "a variable that a field owns": (
        {"server": {"env": [{"name": "GLM5_KV_CAST", "value": "Never"}]}},
        "use spec.attention.kvCast",
    ),
    "bounds in the wrong order": (
        {"autoscaling": {"minReplicas": 3, "maxReplicas": 2, "targetQueueLength": 1}},
        "spec.autoscaling.minReplicas is larger than maxReplicas",
    ),
    "two targets of autoscaling": (
        {"autoscaling": {"maxReplicas": 2, "targetQueueLength": 1, "targetTokensPerSecond": 1}},
        "give exactly one of targetTokensPerSecond and targetQueueLength",
    ),
    "two kernel caches": (
        {"kernelCache": {"persistentVolumeClaim": {"claimName": "a"}, "hostPath": {"path": "/a"}}},
        "give at most one of persistentVolumeClaim and hostPath in spec.kernelCache",
    ),
    "no quantity": ({"sharedMemory": "much"}, "spec.sharedMemory"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_refused_with_field_and_remedy(case, kubectl, namespace):
    spec, message = REFUSED[case]
    done = kubectl.try_run("apply", "-f", "-", text=glm5(namespace, **spec))
    assert done.returncode != 0
    assert message in done.stderr


@pytest.mark.parametrize("name", ["a.b", "1st", "a" * 46])
def test_a_name_that_can_be_no_service_is_refused(name, kubectl, namespace):
    done = kubectl.try_run("apply", "-f", "-", text=glm5(namespace, name))
    assert done.returncode != 0
    assert "metadata.name becomes the name of a Service" in done.stderr


def test_only_the_source_need_be_given(kubectl, namespace):
    kubectl.run("apply", "-f", "-", text=glm5(namespace))
    spec = kubectl.get("glm5", "glm5", "-n", namespace)["spec"]
    assert spec["replicas"] == 1
    assert spec["gpus"] == {"count": 8, "resourceName": "nvidia.com/gpu", "product": ""}
    assert spec["attention"] == {"algorithm": "Dense", "kvCast": "Never"}
    assert spec["drain"] == {"gracePeriod": "10m"}


def test_the_samples_are_accepted(kubectl, namespace):
    from harness import ROOT

    samples = sorted((ROOT / "manifests" / "samples").glob("*.yaml"))
    # KEDA's object is of an API that is not here: tests/cluster/test_autoscaling.py applies it.
    ours = [sample for sample in samples if "apiVersion: keda.sh/" not in sample.read_text()]
    assert ROOT / "manifests" / "samples" / "glm5.yaml" in ours
    for sample in ours:
        kubectl.run("apply", "--dry-run=server", "-n", namespace, "-f", str(sample))


def test_kubectl_explain_is_the_manual(kubectl):
    text = kubectl.run("explain", "glm5.spec.attention.kvCast")
    assert "the whole pool is cast in each layer" in " ".join(text.split())
