"""Where the weights come from, other than a claim: a directory of the node, and an image.

A hub: `test_operator_download.py`.
"""

import json
import re
from pathlib import Path

import pytest

from cluster import images
from demo import install
from demo.deployment import condition, wait_ready

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

NAMESPACE = "glm5-test-host"
READY_SECONDS = 300


def server(line, name, source, **changes):
    return {
        "apiVersion": "glm5.dev/v1alpha1",
        "kind": "GLM5Deployment",
        "metadata": {"name": name},
        "spec": {
            "model": {"source": source},
            "gpus": {"count": 1},
            "kvCache": {"maxTokens": 20000},
            "server": {"image": line.images["server-cpu"], "toolCallParser": "", "reasoningParser": ""},
            "sharedMemory": "1Gi",
            "startup": {"timeout": "10m"},
            "drain": {"gracePeriod": "5s"},
            **changes,
        },
    }


@pytest.fixture
def in_host_namespace(line):
    """The line, in a namespace whose pod security standard does not forbid host paths once the test relaxes it."""
    install.namespace(line.kubectl, NAMESPACE)
    yield line.in_namespace(NAMESPACE)
    line.kubectl.run("delete", "namespace", NAMESPACE, "--wait=true", timeout=180)
    install.operator(line.target, line.images)


def directory_of_the_model(line):
    """The directory of the node that the claim with the tiny model is bound to."""
    claim = line.kubectl.get("pvc", "tiny-model", "-n", line.namespace)
    volume = line.kubectl.get("pv", claim["spec"]["volumeName"])
    return volume["spec"]["hostPath"]["path"]


@pytest.fixture
def image_of_the_model(line, tmp_path):
    """The name of an image in the node that holds the tiny model and nothing else."""
    image, recipe, archive = "glm5.local/tiny-model:1", tmp_path / "Containerfile", tmp_path / "tiny-model.tar"
    recipe.write_text("FROM scratch\nCOPY . /\n")
    context = Path(directory_of_the_model(line))
    images.build_archive(line.target.layout, image=image, recipe=recipe, context=context, archive=archive)
    images.load(line.target.layout, archive)
    return image


def test_a_directory_of_the_node_serves_once_chart_and_namespace_allow_it(line, in_host_namespace):
    there = in_host_namespace
    there.apply(server(line, "host", {"hostPath": {"path": directory_of_the_model(line)}}))
    message = there.wait_for_reason("host", "NotAllowed")
    assert "spec.model.source.hostPath" in message
    assert "allowHostPath=true" in message

    install.operator(line.target, line.images, {"allowHostPath": "true"})
    message = there.wait_for_reason("host", "PodRefused")
    assert re.search(r'violates PodSecurity.*volume type "hostPath"', message)

    label = "pod-security.kubernetes.io/enforce=privileged"
    line.kubectl.run("label", "namespace", NAMESPACE, "--overwrite", label)
    wait_ready(line.kubectl, NAMESPACE, "host", timeout=READY_SECONDS)
    status = there.get("host")["status"]
    assert condition({"status": status}, "Available")["status"] == "True"
    assert "PodRefused" not in json.dumps(status)


def test_an_image_serves_its_weights_and_one_that_is_absent_is_named(line, image_of_the_model):
    line.apply(server(line, "image", {"image": {"reference": image_of_the_model}}))
    try:
        wait_ready(line.kubectl, line.namespace, "image", timeout=READY_SECONDS)

        line.apply(server(line, "image", {"image": {"reference": "glm5.local/absent-model:1"}}))
        message = line.wait_for_reason("image", "ImagePull")
        assert "image glm5.local/absent-model:1 of spec.model.source.image" in message
    finally:
        line.delete("image")
