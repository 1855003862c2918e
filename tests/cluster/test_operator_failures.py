"""Every way in which a pod can fail to serve, made real on the cluster, and what the object says of it.

The pods ask for a resource of their own, so that they are scheduled whatever else runs.
"""

import json

import pytest

from demo.deployment import condition

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

RESOURCE_NAME = "glm5.dev/test-gpu"


@pytest.fixture(scope="module")
def failing(line):
    """Apply a variant of an object that asks for a test resource; all of them are deleted at the end."""
    patch = [{"op": "add", "path": f"/status/capacity/{RESOURCE_NAME.replace('/', '~1')}", "value": "64"}]
    line.kubectl.run("patch", "node", "node-1", "--subresource=status", "--type=json", "-p", json.dumps(patch))
    made = []

    def apply(name, **spec):
        value = {
            "apiVersion": "glm5.dev/v1alpha1",
            "kind": "GLM5Deployment",
            "metadata": {"name": name},
            "spec": {
                "model": {"source": {"persistentVolumeClaim": {"claimName": "tiny-model"}}},
                "gpus": {"count": 1, "resourceName": RESOURCE_NAME},
                "sharedMemory": "64Mi",
                "startup": {"timeout": "10m"},
                "drain": {"gracePeriod": "5s"},
                **spec,
            },
        }
        line.apply(value)
        if name not in made:
            made.append(name)

    yield apply
    for name in made:
        line.delete(name)


def test_an_image_that_cannot_be_pulled_is_named_and_a_good_one_heals_it(line, failing):
    failing("image", server={"image": "glm5.local/absent:1"})
    message = line.wait_for_reason("image", "ImagePull")
    assert "glm5.local/absent:1" in message
    assert line.get("image")["status"]["state"] == "ImagePull"
    failing("image", server={"image": line.images["server-cpu"]}, replicas=0)
    line.wait_for_reason("image", "Stopped")
    assert condition(line.get("image"), "Degraded")["status"] == "False"
    assert "ImagePull" not in json.dumps(line.get("image")["status"])


def test_a_missing_secret_of_a_variable_is_named(line, failing):
    source = {"secretKeyRef": {"name": "absent", "key": "key"}}
    failing("variable", server={"env": [{"name": "X", "valueFrom": source}]})
    message = line.wait_for_reason("variable", "SecretNotFound")
    assert "Secret absent is missing" in message


def test_a_missing_api_key_secret_is_named_though_only_events_tell_of_it(line, failing):
    failing("api-key", server={"apiKeySecretRef": {"name": "absent-key", "key": "key"}})
    message = line.wait_for_reason("api-key", "SecretNotFound")
    assert "Secret absent-key is missing" in message


def test_a_bad_argument_is_quoted(line, failing):
    failing("argument", server={"extraArgs": ["--no-such-flag"]})
    message = line.wait_for_reason("argument", "BadArgument")
    assert "--no-such-flag" in message


def test_a_model_that_is_not_there_is_named(line, failing):
    failing("model", model={"path": "nowhere", "source": {"persistentVolumeClaim": {"claimName": "tiny-model"}}})
    message = line.wait_for_reason("model", "ModelNotFound")
    assert "/models/model/nowhere" in message


def test_too_little_memory_is_said(line, failing):
    failing("memory", server={"resources": {"limits": {"memory": "200Mi"}}})
    message = line.wait_for_reason("memory", "OutOfMemory")
    assert "spec.server.resources" in message


def test_not_enough_gpus_are_told_with_the_schedulers_words(line, failing):
    failing("gpus", gpus={"count": 64, "resourceName": "glm5.dev/absent"})
    message = line.wait_for_reason("gpus", "WaitingForGPU")
    assert "no node has 64 glm5.dev/absent free" in message


def test_a_gpu_product_that_no_node_has_is_said(line, failing):
    failing("product", gpus={"count": 1, "resourceName": RESOURCE_NAME, "product": "NVIDIA-H200"})
    message = line.wait_for_reason("product", "NoMatchingNode")
    assert "nvidia.com/gpu.product=NVIDIA-H200" in message
