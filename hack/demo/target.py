"""The cluster that the demo runs in: the embedded one, or the one that the reader's kubeconfig points at."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cluster import build, lifecycle
from cluster import images as node_images
from cluster.kubectl import Kubectl
from cluster.layout import Layout, layout
from cluster.progress import Failure, run_logged, say
from images.build import Store, ensure, environment
from images.recipes import recipes

LOCAL_REGISTRY = "glm5.local"
IMAGES = ("operator", "server-cpu", "prometheus")


class Target(Protocol):
    """A cluster to run in: how to talk to it, and how images get into it."""

    kubectl: Kubectl

    def provide(self, names: tuple[str, ...]) -> dict[str, str]:
        """Build the named images and make the cluster able to run them; the references to use in pods, by name."""
        ...


@dataclass(frozen=True)
class Built:
    """An image that is built: its name in the archive, and the name that pods are to use.

    The second one's tag tells its content, so that pods are made anew when an image of the same version changes.
    """

    image: str
    archive: Path

    @property
    def reference(self) -> str:
        """The name with a digest of the image's inputs in its tag."""
        _, dash, key = self.archive.stem.rpartition("-")
        return f"{self.image}-{key[:8]}" if dash else self.image


def build_images(cluster: Layout, names: tuple[str, ...]) -> dict[str, Built]:
    """Build the named images. A REGISTRY does not build them anew."""
    settings = {**os.environ, "REGISTRY": LOCAL_REGISTRY}
    known, own = recipes(settings), node_images.own_images()
    archives = ensure([name for name in names if name in known], settings)
    archives |= {name: node_images.ensure_own(cluster, name) for name in names if name in own}
    return {name: Built(known[name].image if name in known else own[name], archives[name]) for name in names}


@dataclass(frozen=True)
class Embedded:
    """The embedded cluster: images are imported into its node, without a registry."""

    layout: Layout
    kubectl: Kubectl

    @classmethod
    def up(cls, cluster: Layout, *, memory: int = 0, disk: int = 0) -> "Embedded":
        """Bring the embedded cluster up, wanting `memory` and `disk` bytes on top of its own."""
        binaries = lifecycle.up(cluster, memory=memory, disk=disk)
        return cls(cluster, Kubectl(f"{binaries}/kubectl", cluster.kubeconfig))

    def provide(self, names: tuple[str, ...]) -> dict[str, str]:
        """Build and import; an image whose archive has not changed since its import is left alone."""
        imported = self.layout.images / "imported"  # kept, and lost, together with the images
        imported.mkdir(exist_ok=True)
        built = build_images(self.layout, names)
        for name, it in built.items():
            mark = imported / name
            if mark.exists() and mark.read_text() == it.archive.name:
                continue
            say(f"importing {it.reference} into the node")
            node_images.load(self.layout, it.archive)
            if it.reference != it.image:
                node_images.ctr(self.layout, "images", "tag", "--force", it.image, it.reference)
            mark.write_text(it.archive.name)
        return {name: it.reference for name, it in built.items()}


@dataclass(frozen=True)
class Current:
    """The reader's own cluster: images go through a registry that its nodes can pull from; nodes are never changed."""

    registry: str
    layout: Layout
    kubectl: Kubectl

    @classmethod
    def find(cls) -> "Current":
        """Take the kubeconfig's current context. Raises Failure when it does not answer."""
        embedded = layout("full")
        program = shutil.which("kubectl") or str(build.build(embedded, ["kubectl"]) / "kubectl")
        kubectl = Kubectl(program)
        answer = kubectl.try_run("version", "--request-timeout=10s")
        if answer.returncode:
            raise Failure(f"The kubeconfig's current context does not answer: {answer.stderr.strip()}")
        return cls(os.environ.get("REGISTRY", ""), embedded, kubectl)

    @classmethod
    def up(cls) -> "Current":
        """Find one that the demo can run in. Raises Failure also when REGISTRY is not given or GPUs are missing."""
        if os.environ.get("REGISTRY", "") in ("", LOCAL_REGISTRY):
            raise Failure(
                "CLUSTER=current needs REGISTRY=, a registry that you can push to and its nodes can pull from: "
                "make demo CLUSTER=current REGISTRY=registry.example.com/glm5"
            )
        current = cls.find()
        _want_gpus(current.kubectl)
        return current

    def provide(self, names: tuple[str, ...]) -> dict[str, str]:
        """Build and push to the registry."""
        store = Store(self.layout.cache)
        references = {}
        for name, it in build_images(self.layout, names).items():
            references[name] = it.reference.replace(LOCAL_REGISTRY, self.registry, 1)
            say(f"pushing {references[name]}")
            # A registry on this machine has no certificate; containerd and docker make the same exception. Nor does
            # compressing 2 GB for a way that leads nowhere pay.
            near = self.registry.startswith(("127.", "localhost"))
            plain = ["--tls-verify=false", "--disable-compression"] if near else []
            for what, command in (
                ("reading", ["pull", "-q", f"docker-archive:{it.archive}"]),
                ("pushing", ["push", "-q", *plain, it.image, f"docker://{references[name]}"]),
            ):
                log = store.log / f"push-{name}.log"
                run_logged(store.buildah(*command), what=f"{what} {references[name]}", log=log, env=environment())
        return references


def _want_gpus(kubectl: Kubectl, wanted: int = 8) -> None:
    """Failure when no node of the cluster offers the GPUs that the sample asks for."""
    nodes = kubectl.get("nodes")["items"]
    most = max((int(node["status"]["allocatable"].get("nvidia.com/gpu", 0)) for node in nodes), default=0)
    if most < wanted:
        raise Failure(
            f"No node of this cluster offers {wanted} nvidia.com/gpu (the most is {most}), which the sample asks for. "
            "Use a cluster that has them, or the embedded one: make demo CLUSTER=embedded"
        )


def choose(*, memory: int = 0, disk: int = 0) -> Target:
    """Return the target that CLUSTER names. Raises Failure for another word, and when it cannot be used."""
    match os.environ.get("CLUSTER", "embedded"):
        case "embedded":
            return Embedded.up(layout("full"), memory=memory, disk=disk)
        case "current":
            return Current.up()
        case other:
            raise Failure(f"CLUSTER={other} is neither embedded nor current.")


def helm(target: Target, *arguments: str) -> str:
    """Run helm against the target's cluster; its output. Raises Failure with its words."""
    embedded = layout("full")
    program = build.build(embedded, ["helm"]) / "helm"
    done = subprocess.run([program, *arguments], capture_output=True, text=True, env=target.kubectl.environment)
    if done.returncode:
        raise Failure(f"helm {arguments[0]} failed: {done.stderr.strip()}")
    return done.stdout
