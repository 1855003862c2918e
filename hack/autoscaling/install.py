"""Installs KEDA from the manifests in its own module, and prometheus-adapter with the rules of our sample."""

import re
from pathlib import Path
from string import Template

from cluster import images
from cluster.layout import REPOSITORY
from demo.names import MONITORING_NAMESPACE
from demo.target import Embedded

from .build import KEDA, PROMETHEUS_ADAPTER, ensure_image

KEDA_NAMESPACE = "keda"
# All but the admission webhooks, which only check what people write.
KEDA_PARTS = ("general", "crd", "service_account", "rbac", "manager", "metrics-server")
ADAPTER_RULES = REPOSITORY / "manifests" / "samples" / "autoscaling-prometheus-adapter.yaml"


def keda(target: Embedded) -> None:
    """Install KEDA, and wait until it serves external metrics. Raises Failure."""
    images.load(target.layout, ensure_image(target.layout, KEDA))
    for part in KEDA_PARTS:
        manifest = target.kubectl.run("kustomize", str(KEDA.source() / "config" / part))
        # Server-side: the annotation that a client-side apply writes is too small for these definitions.
        target.kubectl.run("apply", "--server-side", "--force-conflicts", "-f", "-", text=with_image(manifest))
    _wait(target, KEDA_NAMESPACE, "keda-operator", "keda-metrics-apiserver", api="v1beta1.external.metrics.k8s.io")


def with_image(manifest: str) -> str:
    """The manifest with our one image in the place of KEDA's, which is in no registry."""
    ours = re.sub(r"image: ghcr\.io/kedacore/[a-z-]+:\S+", f"image: {KEDA.image}", manifest)
    return ours.replace("imagePullPolicy: Always", "imagePullPolicy: Never")


def prometheus_adapter(target: Embedded) -> None:
    """Install the adapter beside Prometheus, and wait until it serves custom metrics. Raises Failure."""
    images.load(target.layout, ensure_image(target.layout, PROMETHEUS_ADAPTER))
    target.kubectl.run("apply", "-n", MONITORING_NAMESPACE, "-f", str(ADAPTER_RULES))
    manifest = (Path(__file__).parent / "prometheus-adapter.yaml").read_text()
    target.kubectl.run("apply", "-f", "-", text=Template(manifest).substitute(IMAGE=PROMETHEUS_ADAPTER.image))
    _wait(target, MONITORING_NAMESPACE, "prometheus-adapter", api="v1beta1.custom.metrics.k8s.io")


def _wait(target: Embedded, namespace: str, *deployments: str, api: str) -> None:
    for deployment in deployments:
        place = ("-n", namespace, "--timeout=180s")
        target.kubectl.run("rollout", "status", f"deployment/{deployment}", *place, timeout=190)
    target.kubectl.run("wait", f"apiservice/{api}", "--for=condition=Available", "--timeout=60s", timeout=70)
