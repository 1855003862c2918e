"""What the operator's own metrics show of objects."""

from glm5_operator.metrics import Metrics


def status(state="Ready", **conditions):
    return {"state": state, "conditions": [{"type": kind, "status": value} for kind, value in conditions.items()]}


def samples(gauge):
    return [(sample.labels, sample.value) for metric in gauge.collect() for sample in metric.samples]


def test_a_condition_that_an_object_no_longer_has_leaves_no_series():
    metrics = Metrics()
    metrics.tell("models", "glm5", status(Available="True", PodTemplateMerged="False"))
    metrics.tell("models", "glm5", status(Available="True"))
    assert {labels["type"] for labels, _ in samples(metrics.condition)} == {"Available"}


def test_an_object_that_is_gone_leaves_no_series_and_the_others_theirs():
    metrics = Metrics()
    everything = dict.fromkeys(
        ("Available", "Progressing", "Degraded", "BackendVerified", "DecodeHealthy", "PodTemplateMerged"), "True"
    )
    metrics.tell("models", "glm5", status(**everything))
    metrics.tell("models", "other", status(Available="True"))
    metrics.forget("models", "glm5")
    assert {labels["deployment"] for labels, _ in samples(metrics.condition)} == {"other"}
    assert {labels["deployment"] for labels, _ in samples(metrics.available)} == {"other"}
    assert samples(metrics.deployments) == [({"state": "Ready"}, 1.0)]


def test_objects_are_counted_by_state_and_a_state_without_objects_has_no_series():
    metrics = Metrics()
    for name, state in (("a", "Ready"), ("b", "Ready"), ("c", "Starting"), ("c", "Ready"), ("a", "Stopped")):
        metrics.tell("models", name, status(state, Available="True"))
    assert sorted((labels["state"], value) for labels, value in samples(metrics.deployments)) == [
        ("Ready", 2.0),
        ("Stopped", 1.0),
    ]


def test_a_stopped_object_is_not_shown_as_unavailable():
    metrics = Metrics()
    metrics.tell("models", "glm5", status("Failing", Available="False"))
    assert samples(metrics.available) == [({"namespace": "models", "deployment": "glm5"}, 0.0)]
    metrics.tell("models", "glm5", status("Stopped", Available="False"))
    assert samples(metrics.available) == []
