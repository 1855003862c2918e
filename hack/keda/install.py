"""Installs KEDA from the manifests in its own module, with our image in the place of the published ones."""

import re

from cluster import images
from demo.target import Embedded

from . import build

NAMESPACE = "keda"
# All but the admission webhooks, which only check what people write.
PARTS = ("general", "crd", "service_account", "rbac", "manager", "metrics-server")


def install(target: Embedded) -> None:
    """Install KEDA, and wait until it serves external metrics. Raises Failure."""
    images.load(target.layout, build.ensure_image(target.layout))
    for part in PARTS:
        manifest = target.kubectl.run("kustomize", str(build.source() / "config" / part))
        # Server-side: the annotation that a client-side apply writes is too small for these definitions.
        target.kubectl.run("apply", "--server-side", "--force-conflicts", "-f", "-", text=with_image(manifest))
    for deployment in ("keda-operator", "keda-metrics-apiserver"):
        place = ("-n", NAMESPACE, "--timeout=180s")
        target.kubectl.run("rollout", "status", f"deployment/{deployment}", *place, timeout=190)
    api = "apiservice/v1beta1.external.metrics.k8s.io"
    target.kubectl.run("wait", api, "--for=condition=Available", "--timeout=60s", timeout=70)


def with_image(manifest: str) -> str:
    """The manifest with our one image in the place of KEDA's, which is in no registry."""
    ours = re.sub(r"image: ghcr\.io/kedacore/[a-z-]+:\S+", f"image: {build.image()}", manifest)
    return ours.replace("imagePullPolicy: Always", "imagePullPolicy: Never")
