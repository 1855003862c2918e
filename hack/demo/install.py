"""What stands in the cluster before the first GLM5Deployment: Prometheus, the operator, the tiny model."""

from string import Template
from typing import Any

from cluster.kubectl import Kubectl
from cluster.progress import Failure

from . import jobs
from .names import (
    CHART,
    CLAIM,
    HERE,
    MONITORING_NAMESPACE,
    NAMESPACES,
    OPERATOR_NAMESPACE,
    OWNER,
    OWNER_LABEL,
    RELEASE,
)
from .target import Target, helm
from .troubles import explained


def namespace(kubectl: Kubectl, name: str) -> None:
    """Make a namespace that demo-down knows as its own, in which every pod must be unprivileged."""
    labels = {
        OWNER_LABEL: OWNER,
        "pod-security.kubernetes.io/enforce": "restricted",
    }
    kubectl.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}])


def own_namespaces(kubectl: Kubectl) -> list[str]:
    """Return which of the demo's namespaces are there and made by it. Raises Failure when one is somebody else's."""
    found = [value for name in NAMESPACES if (value := kubectl.find("namespace", name))]
    for value in found:
        if value["metadata"].get("labels", {}).get(OWNER_LABEL) != OWNER:
            name = value["metadata"]["name"]
            raise Failure(
                f"This cluster has a namespace {name} that is not the demo's. The demo needs it for itself, and "
                "demo-down would delete it with all that is in it: use another cluster."
            )
    return [value["metadata"]["name"] for value in found]


def prometheus(kubectl: Kubectl, image: str) -> None:
    """Install the demo's Prometheus and wait until it answers."""
    manifest = (HERE / "manifests" / "prometheus.yaml").read_text()
    kubectl.apply(Template(manifest).safe_substitute(PROMETHEUS_IMAGE=image))
    place = ("-n", MONITORING_NAMESPACE)
    with explained(kubectl, MONITORING_NAMESPACE):
        kubectl.run("rollout", "status", "deployment/prometheus", *place, "--timeout=120s", timeout=130)


def operator(target: Target, images: dict[str, str], more: dict[str, str] | None = None) -> None:
    """Install the operator by its Helm chart, or upgrade it, and wait until it is Ready.

    `more` are further values of the chart.
    """
    namespace(target.kubectl, OPERATOR_NAMESPACE)
    repository, _, tag = images["operator"].rpartition(":")
    values = {
        "image.repository": repository,
        "image.tag": tag,
        "serverImage": images["server-cpu"],
        # Figures at once instead of every half minute: there is one object to write to.
        "decode.readSeconds": "2",
        "decode.statusSeconds": "3",
        **(more or {}),
    }
    settings = [part for name, value in values.items() for part in ("--set", f"{name}={value}")]
    place = ("-n", OPERATOR_NAMESPACE)
    with explained(target.kubectl, OPERATOR_NAMESPACE):
        helm(target, "upgrade", "--install", RELEASE, str(CHART), *place, *settings, "--wait", "--timeout=180s")


def model(kubectl: Kubectl, namespace: str, image: str) -> None:
    """Write the tiny model to a claim, by a job in the server's image. Nothing to do when it is there."""
    kubectl.apply([claim(namespace)])
    name = "make-tiny-model"
    objects = jobs.job(
        name, namespace, image=image, command=["glm5-mla", "tiny-model", "--out", "/models"], claim=CLAIM
    )
    jobs.start(kubectl, objects)
    # In a cluster that pulls images, this is where a node fetches the server's: 2 GB.
    with explained(kubectl, namespace):
        jobs.finish(kubectl, name, namespace, timeout=900)


def claim(namespace: str) -> dict[str, Any]:
    """Return the claim that the model is written to."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": CLAIM, "namespace": namespace},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
