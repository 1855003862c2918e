"""What is said before a start about weights and KV pool that can't fit the GPUs."""

import pytest
from builders import context, ready_pod
from test_status import status_of

from glm5_operator.reconcile.decode import parse_reading
from glm5_operator.reconcile.fit import fits, gpu_bytes

GIB = 2**30


def hub(repo="zai-org/GLM-5-FP8", *, product="NVIDIA-H200", **spec):
    source = {"huggingFace": {"repo": repo, "cacheClaimName": "models"}}
    model = {"source": source | {"persistentVolumeClaim": None}, **spec.pop("model", {})}
    return {"model": model, "gpus": {"product": product, **spec.pop("gpus", {})}, **spec}


@pytest.mark.parametrize(
    ("product", "gib"),
    [
        ("NVIDIA-H200", 141),
        ("NVIDIA-H200-SHARED", 141),
        ("NVIDIA-H100-80GB-HBM3", 80),
        ("NVIDIA-A100-SXM4-40GB", 40),
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", None),
        ("Some-Card", None),
        ("", None),
    ],
)
def test_a_gpus_memory_is_known_by_its_product(product, gib):
    assert gpu_bytes(context({"gpus": {"product": product}})) == (gib and gib * GIB)


def test_a_node_selector_in_the_pod_template_tells_too():
    selector = {"nvidia.com/gpu.memory": "143771"}
    assert gpu_bytes(context({"podTemplate": {"spec": {"nodeSelector": selector}}})) == 143771 * 2**20


def test_another_resource_than_whole_gpus_is_of_unknown_size():
    assert gpu_bytes(context({"gpus": {"product": "NVIDIA-H200", "resourceName": "nvidia.com/mig-1g.18gb"}})) is None


TB = 10**12
CASES = {
    "GLM-5 in FP8 on eight H200": (hub(), None, "Fits"),
    "GLM-5 in BF16 on eight H200": (hub("zai-org/GLM-5"), None, "TooLarge"),
    "GLM-5 in FP8 on eight H100": (hub(product="NVIDIA-H100-80GB-HBM3"), None, "TooLarge"),
    "GLM-5 in FP8 on four H200": (hub(gpus={"count": 4}), None, "TooLarge"),
    "eight GPUs of which ranks use four": (hub(gpus={"tensorParallelSize": 4}), None, "TooLarge"),
    "a hub that told another size": (hub(), 2 * TB, "TooLarge"),
    "a pool that leaves no room": (hub(kvCache={"maxTokens": 2_000_000}), None, "TooLarge"),
    "the same pool in half as many tokens": (hub(kvCache={"maxTokens": 1_000_000}), None, "Fits"),
    "half as many tokens of twice the size": (
        hub(kvCache={"maxTokens": 1_000_000, "dtype": "bfloat16"}),
        None,
        "TooLarge",
    ),
    "that pool for a model of which the layers are not known": (
        hub("example/model", kvCache={"maxTokens": 2_000_000}),
        TB // 2,
        "Fits",
    ),
    "one directory of a repository with several models": (hub("example/all", model={"path": "fp8"}), 2 * TB, None),
    "a part of the memory that is too small": (hub(kvCache={"memoryFraction": 0.5}), None, "TooLarge"),
    "a model of unknown size": (hub("example/model"), None, None),
    "a claim, whose contents nobody knows": ({"gpus": {"product": "NVIDIA-H200"}}, None, None),
    "a GPU of unknown size": (hub("zai-org/GLM-5", product=""), None, None),
    "weights that are quantized while they load": (hub("zai-org/GLM-5", model={"quantization": "fp8"}), None, None),
    "weights of which a part stays in the host's memory": (
        hub("zai-org/GLM-5", server={"extraArgs": ["--cpu-offload-gb=100"]}),
        None,
        None,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_plainly_cannot_fit_is_said_and_the_unknown_is_not(case):
    spec, told, reason = CASES[case]
    condition = fits(context(spec), told)
    assert (condition and condition.reason) == reason
    if condition is not None:
        assert condition.status == (reason == "Fits")


def test_the_message_has_both_sides_of_the_sum_and_a_remedy():
    condition = fits(context(hub("zai-org/GLM-5")), None)
    assert condition.message == (
        "each GPU would get 165 GiB of weights (one of 8 ranks), but has 141 GiB of a GPU's 141 GiB: take more or "
        "larger GPUs (spec.gpus), or weights of fewer bits"
    )
    condition = fits(context(hub(kvCache={"maxTokens": 2_000_000})), None)
    assert "and 83.7 GiB of KV pool (2000000 tokens in 78 layers)" in condition.message
    assert "lower spec.kvCache.maxTokens" in condition.message


def reading(weights):
    return parse_reading({"version": 1, "download": {"done": 1, "total": 2 * weights, "weights": weights}})


def test_the_size_that_the_hub_tells_is_remembered_for_its_revision():
    downloading = {**ready_pod("glm5-a"), "status": {"phase": "Pending"}}
    told = status_of(downloading, extra=hub("example/model"), readings={"glm5-a": reading(2 * TB)})
    assert told["model"] == {"source": "example/model@main", "weightBytes": 2 * TB}
    assert "FitsGPUs" in {entry["type"] for entry in told["conditions"]}
    later = status_of(extra=hub("example/model"), previous=told)
    assert later["model"] == told["model"]
    other = hub("example/model")
    other["model"]["source"]["huggingFace"]["revision"] = "v2"
    assert "model" not in status_of(extra=other, previous=told)


def test_a_server_that_runs_needs_no_estimate():
    before = status_of(extra=hub("zai-org/GLM-5"))
    after = status_of(ready_pod(), extra=hub("zai-org/GLM-5"), previous=before)
    assert "FitsGPUs" in {entry["type"] for entry in before["conditions"]}
    assert "FitsGPUs" not in {entry["type"] for entry in after["conditions"]}
    assert before["state"] == "Starting", "nothing is held back"
