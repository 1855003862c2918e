"""What scales, as it is installed, and the samples that use it."""

import re

import yaml

from autoscaling.build import KEDA, PROMETHEUS_ADAPTER
from autoscaling.install import with_image
from cluster.layout import REPOSITORY
from glm5_operator.api import names

MANIFEST = """
containers:
- image: ghcr.io/kedacore/keda-metrics-apiserver:main
  imagePullPolicy: Always
- image: ghcr.io/kedacore/keda:main
  imagePullPolicy: Always
"""


def test_every_image_of_keda_is_ours_and_never_pulled():
    containers = yaml.safe_load(with_image(MANIFEST))["containers"]
    assert containers == [{"image": KEDA.image, "imagePullPolicy": "Never"}] * 2
    assert KEDA.image.startswith("glm5.local/keda:2.")
    assert PROMETHEUS_ADAPTER.image.startswith("glm5.local/prometheus-adapter:0.")


def test_the_sample_scales_an_object_of_ours_on_metrics_that_are_documented():
    sample = yaml.safe_load((REPOSITORY / "manifests" / "samples" / "autoscaling-keda.yaml").read_text())
    target = sample["spec"]["scaleTargetRef"]
    assert (target["apiVersion"], target["kind"]) == (names.API_VERSION, names.KIND)
    queries = " ".join(trigger["metadata"]["query"] for trigger in sample["spec"]["triggers"])
    documented = (REPOSITORY / "docs" / "metrics.md").read_text()
    used = set(re.findall(r"glm5_\w+", queries))
    assert used == {metric for metric in used if metric in documented} != set()
