"""Whoever may create an object does not gain the node."""

import pytest
from builders import CLAIM, merged

from glm5_operator.api.spec import GLM5DeploymentSpec
from glm5_operator.reconcile.guard import refusal
from glm5_operator.settings import Settings


def refused(extra, **settings):
    return refusal(GLM5DeploymentSpec.model_validate(merged(CLAIM, extra)), Settings(**settings))


HOST_PATHS = [
    ({"kernelCache": {"hostPath": {"path": "/x"}}}, "spec.kernelCache.hostPath"),
    (
        {"podTemplate": {"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}}},
        "spec.podTemplate.spec.volumes[v].hostPath",
    ),
]


@pytest.mark.parametrize(("extra", "field"), HOST_PATHS)
def test_host_paths_are_refused_unless_the_chart_allows_them(extra, field):
    assert field in refused(extra)
    assert "allowHostPath=true" in refused(extra)
    assert refused(extra, allow_host_path=True) is None


@pytest.mark.parametrize(
    ("pod", "field"),
    [
        ({"hostNetwork": True}, "hostNetwork"),
        ({"hostPID": True}, "hostPID"),
        (
            {"containers": [{"name": "server", "securityContext": {"privileged": True}}]},
            "containers[server].securityContext.privileged",
        ),
        (
            {"initContainers": [{"name": "i", "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}]},
            "capabilities.add",
        ),
        ({"containers": [{"name": "server", "ports": [{"containerPort": 1, "hostPort": 1}]}]}, "hostPort"),
        ({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}, "spec.securityContext.seccompProfile"),
        (
            {"containers": [{"name": "server", "securityContext": {"appArmorProfile": {"type": "Unconfined"}}}]},
            "containers[server].securityContext.appArmorProfile",
        ),
        ({"securityContext": {"seLinuxOptions": {"type": "spc_t"}}}, "spec.securityContext.seLinuxOptions"),
    ],
)
def test_rights_over_the_node_are_refused_always(pod, field):
    assert field in refused({"podTemplate": {"spec": pod}}, allow_host_path=True)


def test_an_ordinary_object_is_carried_out():
    assert refused({"podTemplate": {"spec": {"priorityClassName": "high"}}}) is None
