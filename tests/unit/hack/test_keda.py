"""KEDA's own manifests, as they are installed, and the sample that uses it."""

import re

import yaml

from cluster.layout import REPOSITORY
from glm5_operator.api import names
from keda.build import image
from keda.install import with_image

MANIFEST = """
containers:
- image: ghcr.io/kedacore/keda-metrics-apiserver:main
  imagePullPolicy: Always
- image: ghcr.io/kedacore/keda:main
  imagePullPolicy: Always
"""


def test_every_image_of_keda_is_ours_and_never_pulled():
    containers = yaml.safe_load(with_image(MANIFEST))["containers"]
    assert containers == [{"image": image(), "imagePullPolicy": "Never"}] * 2
    assert image().startswith("glm5.local/keda:2.")


def test_the_sample_scales_an_object_of_ours_on_metrics_that_are_documented():
    sample = yaml.safe_load((REPOSITORY / "manifests" / "samples" / "autoscaling-keda.yaml").read_text())
    target = sample["spec"]["scaleTargetRef"]
    assert (target["apiVersion"], target["kind"]) == (names.API_VERSION, names.KIND)
    queries = " ".join(trigger["metadata"]["query"] for trigger in sample["spec"]["triggers"])
    documented = (REPOSITORY / "docs" / "metrics.md").read_text()
    used = set(re.findall(r"glm5_\w+", queries))
    assert used == {metric for metric in used if metric in documented} != set()
