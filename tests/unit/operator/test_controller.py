"""What the controller counts about an object."""

from glm5_operator.controller import Controller
from glm5_operator.metrics import Metrics
from glm5_operator.operator import utc_now
from glm5_operator.settings import Settings


def counted(status):
    conditions = [{"type": kind, "status": value} for kind, value in status.items()]
    return {"state": "Ready", "conditions": conditions}


def test_a_condition_that_an_object_no_longer_has_leaves_no_series():
    metrics = Metrics()
    controller = Controller(None, Settings(), metrics, utc_now)
    controller._count(("models", "glm5"), counted({"Available": "True", "PodTemplateMerged": "False"}))
    controller._count(("models", "glm5"), counted({"Available": "True"}))
    series = {sample.labels["type"] for sample in next(iter(metrics.condition.collect())).samples}
    assert series == {"Available"}
