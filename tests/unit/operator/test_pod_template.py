"""A user's podTemplate: merged by the API's list keys, ours winning only where the server would not work."""

import pytest
from builders import context

from glm5_operator.resources.pod_template import MalformedError, merged_pod_template


def merged(wish, extra=None):
    return merged_pod_template(context({"podTemplate": wish, **(extra or {})}))


def by(items, key, value):
    return next(item for item in items if item[key] == value)


def test_without_a_wish_the_generated_template_stands():
    template, kept = merged_pod_template(context())
    assert by(template["spec"]["containers"], "name", "server")
    assert kept == []


def test_plain_fields_labels_and_annotations_are_taken_over():
    template, kept = merged(
        {
            "metadata": {"labels": {"team": "blue"}, "annotations": {"a": "b"}},
            "spec": {"priorityClassName": "high", "nodeSelector": {"zone": "a"}, "runtimeClassName": "nvidia"},
        }
    )
    assert template["metadata"]["labels"]["team"] == "blue"
    assert template["metadata"]["labels"]["glm5.dev/deployment"] == "glm5"
    assert template["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"] == "server"
    assert template["spec"]["priorityClassName"] == "high"
    assert template["spec"]["runtimeClassName"] == "nvidia"
    assert kept == []


def test_lists_are_merged_by_their_keys():
    template, kept = merged(
        {
            "spec": {
                "containers": [
                    {
                        "name": "server",
                        "env": [{"name": "NCCL_DEBUG", "value": "INFO"}],
                        "volumeMounts": [{"name": "extra", "mountPath": "/extra"}],
                        "resources": {"limits": {"rdma/hca": "1"}},
                    },
                    {"name": "helper", "image": "helper:1"},
                ],
                "volumes": [{"name": "extra", "emptyDir": {}}],
                "tolerations": [{"key": "team", "operator": "Exists"}],
            }
        }
    )
    pod = template["spec"]
    server = by(pod["containers"], "name", "server")
    assert by(server["env"], "name", "NCCL_DEBUG")["value"] == "INFO"
    assert by(server["env"], "name", "GLM5_KV_CAST")["value"] == "Never"
    assert by(server["volumeMounts"], "mountPath", "/models/model")
    assert server["resources"]["limits"] == {"nvidia.com/gpu": "8", "rdma/hca": "1"}
    assert by(pod["containers"], "name", "helper")
    assert {volume["name"] for volume in pod["volumes"]} == {"model", "run", "shm", "kernel-cache", "extra"}
    assert [toleration["key"] for toleration in pod["tolerations"]] == ["nvidia.com/gpu", "team"]
    assert kept == []


def test_null_removes_what_was_generated():
    template, _ = merged({"spec": {"securityContext": {"fsGroup": None}}})
    assert "fsGroup" not in template["spec"]["securityContext"]


@pytest.mark.parametrize(
    "wish",
    [
        {"metadata": {"labels": None}},
        {"spec": "text"},
        {"spec": {"containers": None}},
        {"spec": {"initContainers": {"name": "server"}}},
        {"spec": {"containers": ["server"]}},
        {"spec": {"containers": [{"name": {}}]}},
        {"spec": {"containers": [{"name": "server", "volumeMounts": None}]}},
        {"spec": {"volumes": None}},
    ],
)
def test_a_template_of_another_form_is_told_and_not_tripped_over(wish):
    with pytest.raises(MalformedError, match="kubectl explain"):
        merged(wish)


def test_what_would_break_the_server_is_kept_and_named():
    template, kept = merged(
        {
            "metadata": {"labels": {"glm5.dev/deployment": "other"}},
            "spec": {
                "containers": [
                    {
                        "name": "server",
                        "command": ["bash"],
                        "readinessProbe": {"httpGet": {"path": "/health"}},
                        "env": [{"name": "GLM5_RUN_DIR", "value": "/tmp"}],
                        "volumeMounts": [{"name": "x", "mountPath": "/models/model"}],
                        "ports": [{"containerPort": 30000, "name": "web"}],
                    }
                ],
                "volumes": [{"name": "model", "emptyDir": {}}],
            },
        }
    )
    generated, _ = merged_pod_template(context())
    assert template["metadata"]["labels"] == generated["metadata"]["labels"]
    server = by(template["spec"]["containers"], "name", "server")
    original = by(generated["spec"]["containers"], "name", "server")
    for field in ("command", "readinessProbe", "ports", "volumeMounts"):
        assert server[field] == original[field]
    assert by(server["env"], "name", "GLM5_RUN_DIR")["value"] == "/run/glm5"
    assert by(template["spec"]["volumes"], "name", "model") == by(generated["spec"]["volumes"], "name", "model")
    assert kept == [
        "spec.podTemplate.metadata.labels.glm5.dev/deployment",
        "spec.podTemplate.spec.containers[server].command",
        "spec.podTemplate.spec.containers[server].env[GLM5_RUN_DIR]",
        "spec.podTemplate.spec.containers[server].ports[30000]",
        "spec.podTemplate.spec.containers[server].readinessProbe",
        "spec.podTemplate.spec.containers[server].volumeMounts[/models/model]",
        "spec.podTemplate.spec.volumes[model]",
    ]


def test_a_proxy_reaches_the_download_by_the_pod_template():
    hub = {"persistentVolumeClaim": None, "huggingFace": {"repo": "zai-org/GLM-5", "cacheClaimName": "cache"}}
    proxy = {"name": "HTTPS_PROXY", "value": "http://proxy:3128"}
    wish = {"spec": {"initContainers": [{"name": "download", "env": [proxy]}]}}
    template, kept = merged(wish, {"model": {"source": hub}})
    assert proxy in by(template["spec"]["initContainers"], "name", "download")["env"]
    assert kept == []
