"""The demo takes only namespaces that it has made itself: demo-down deletes them."""

import pytest

from cluster.progress import Failure
from demo.install import own_namespaces
from demo.names import NAMESPACES, OWNER, OWNER_LABEL


class Namespaces:
    """Stands where kubectl does, with these namespaces and their labels."""

    def __init__(self, **labels):
        self.labels = labels

    def find(self, kind, name):
        assert kind == "namespace"
        return {"metadata": {"name": name, "labels": self.labels[name]}} if name in self.labels else None


def test_an_empty_cluster_has_none():
    assert own_namespaces(Namespaces()) == []


def test_those_that_carry_the_demos_label_are_its_own():
    assert own_namespaces(Namespaces(**{name: {OWNER_LABEL: OWNER} for name in NAMESPACES})) == list(NAMESPACES)


def test_one_of_somebody_else_is_refused_by_name():
    with pytest.raises(Failure, match="namespace monitoring that is not the demo's"):
        own_namespaces(Namespaces(monitoring={"team": "sre"}))
