"""When the demo takes a GLM5Deployment for Ready, and what it says when it is not."""

import copy

import pytest

from demo.deployment import explain, is_ready

READY = {
    "metadata": {"generation": 3},
    "spec": {"replicas": 1, "attention": {"kvCast": "ActiveRows"}},
    "status": {
        "observedGeneration": 3,
        "updatedReplicas": 1,
        "readyReplicas": 1,
        "state": "Ready",
        "backend": {"kvCast": "ActiveRows"},
        "conditions": [
            {"type": "Available", "status": "True", "reason": "Ready", "message": "All pods answer."},
            {"type": "BackendVerified", "status": "True", "reason": "Verified", "message": "Ours is in use."},
        ],
    },
}


def changed(*path, value):
    """READY with the value at a path replaced."""
    copied = copy.deepcopy(READY)
    place = copied
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return copied


def test_an_object_whose_newest_spec_runs_verified_is_ready():
    assert is_ready(READY)


@pytest.mark.parametrize(
    "value",
    [
        changed("metadata", "generation", value=4),
        changed("status", "readyReplicas", value=0),
        changed("status", "updatedReplicas", value=0),
        changed("status", "backend", "kvCast", value="WholePool"),
        changed("status", "conditions", 0, "status", value="False"),
        changed("status", "conditions", 1, "status", value="Unknown"),
        changed("status", value={}),
    ],
    ids=["newer spec", "not ready", "old pod", "other mode", "not available", "not verified", "no status"],
)
def test_anything_less_is_not_ready(value):
    assert not is_ready(value)


def test_an_explanation_holds_the_state_and_the_conditions_that_do_not_hold():
    waiting = changed(
        "status",
        "conditions",
        0,
        value={
            "type": "Available",
            "status": "False",
            "reason": "NoClaim",
            "message": "The claim x does not exist; make it.",
        },
    )
    text = explain(waiting)
    assert "The claim x does not exist; make it." in text
    assert "Ours is in use." not in text
