"""When the embedded cluster's node counts as up."""

import pytest

from cluster.node import asked_too_early, takes_pods

READY = {"type": "Ready", "status": "True"}
NOT_READY = {"type": "Ready", "status": "False"}


def node(*conditions, taints=()):
    return {"spec": {"taints": list(taints)} if taints else {}, "status": {"conditions": list(conditions)}}


def test_a_ready_node_without_taints_takes_pods():
    assert takes_pods(node(READY))


@pytest.mark.parametrize(
    "found", [node(), node(NOT_READY), node(READY, taints=[{"key": "node.kubernetes.io/not-ready"}])]
)
def test_a_node_that_registers_or_still_carries_its_not_ready_taint_does_not(found):
    assert not takes_pods(found)


def test_a_taint_that_a_person_set_is_not_waited_for():
    assert takes_pods(node(READY, taints=[{"key": "dedicated", "effect": "NoSchedule"}]))


@pytest.mark.parametrize(
    ("last_line", "again"),
    [
        ('"command failed" err="validate CRI v1 runtime API: rpc error: desc = server is not initialized yet"', True),
        ('"command failed" err="failed to load kubelet config file"', False),
    ],
)
def test_a_kubelet_that_asked_its_runtime_too_early_is_started_again_and_no_other(last_line, again):
    assert asked_too_early(f"started\n{last_line}\n") == again
