"""Container images: the small ones that the cluster itself needs, and loading any into the node without a registry."""

import shutil
import subprocess
from pathlib import Path

from . import build
from .layout import HERE, PAUSE_IMAGE, Layout, version
from .progress import Failure, run_logged, say


def coredns_image() -> str:
    """The name of the image of the cluster's DNS server."""
    return f"glm5.local/coredns:{version('COREDNS_VERSION').removeprefix('v')}"


def prometheus_image() -> str:
    """The name of the image of the Prometheus that the demo and the tests put into a cluster."""
    return f"glm5.local/prometheus:{version('PROMETHEUS_VERSION').removeprefix('v')}"


def own_images() -> dict[str, str]:
    """The images of one program each that `ensure_own` builds, by the program's name."""
    return {"pause": PAUSE_IMAGE, "coredns": coredns_image(), "prometheus": prometheus_image()}


def ensure_own(layout: Layout, name: str) -> Path:
    """Build one of `own_images`, its program first, unless this version's archive is there; the archive."""
    binaries = build.build(layout, [name])
    archive = binaries / f"{name}.tar"
    if not archive.exists():
        recipe = HERE / "images" / name / "Containerfile"
        build_archive(layout, image=own_images()[name], recipe=recipe, context=binaries, archive=archive)
    return archive


def build_archive(layout: Layout, *, image: str, recipe: Path, context: Path, archive: Path) -> None:
    """Build `image` with buildah and keep it as a docker archive. Raises Failure with buildah's words."""
    say(f"building the image {image}")
    storage = layout.cache / "own-images"
    buildah = ["buildah", "--root", storage, "--runroot", storage / "run", "--storage-driver", "vfs"]
    log = layout.cache / "log" / f"image-{archive.stem}.log"
    half = archive.with_suffix(".half")
    half.unlink(missing_ok=True)
    run_logged([*buildah, "build", "-q", "-t", image, "-f", recipe, context], what=f"building {image}", log=log)
    run_logged([*buildah, "push", "-q", image, f"docker-archive:{half}:{image}"], what=f"saving {image}", log=log)
    half.rename(archive)
    shutil.rmtree(storage)


def load(layout: Layout, archive: Path) -> None:
    """Import an image archive into the node's containerd. Raises Failure when it cannot be read."""
    if not archive.exists():
        raise Failure(f"{archive} does not exist; build the images first: make images")
    ctr(layout, "images", "import", str(archive))


def ctr(layout: Layout, *arguments: str) -> str:
    """containerd's own client in the namespace that Kubernetes uses; its output."""
    command = [build.folder(layout) / "ctr", f"--address={layout.containerd_socket}", "--namespace=k8s.io", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Failure(f"ctr {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def answers(layout: Layout) -> bool:
    """Whether the node's containerd is there to be asked."""
    try:
        return bool(ctr(layout, "version"))
    except Failure:
        return False


def names(layout: Layout) -> set[str]:
    """The images that the node has."""
    return set(ctr(layout, "images", "list", "-q").split())
