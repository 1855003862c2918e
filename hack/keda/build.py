"""Builds KEDA's operator and metrics server into one image. On two idle cores without Go's cache: about 5 minutes."""

import json
import subprocess
from pathlib import Path

from cluster import images
from cluster.build import environment
from cluster.layout import Layout, version
from cluster.progress import Failure, run_logged, say

MODULE = "github.com/kedacore/keda/v2"
PROGRAMS = {"keda": "./cmd/operator", "keda-adapter": "./cmd/adapter"}


def image() -> str:
    """The name of the image."""
    return f"glm5.local/keda:{version('KEDA_VERSION').removeprefix('v')}"


def source() -> Path:
    """The module's folder in Go's cache, checked against Go's checksum database. Raises Failure with Go's words."""
    command = ["go", "mod", "download", "-json", f"{MODULE}@{version('KEDA_VERSION')}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", env=environment(GOFLAGS="-mod=readonly"))
    if done.returncode:
        raise Failure(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return Path(json.loads(done.stdout)["Dir"])


def ensure_image(layout: Layout) -> Path:
    """Build the image unless this version's archive is there; the archive. Raises Failure with the compiler's words."""
    folder = layout.cache / "keda" / version("KEDA_VERSION")
    archive = folder / "keda.tar"
    if archive.exists():
        return archive
    folder.mkdir(parents=True, exist_ok=True)
    for name, package in PROGRAMS.items():
        if not (folder / name).exists():
            _build(layout, name, package, folder)
    recipe = Path(__file__).parent / "Containerfile"
    images.build_archive(layout, image=image(), recipe=recipe, context=folder, archive=archive)
    return archive


def _build(layout: Layout, name: str, package: str, folder: Path) -> None:
    say(f"building {name} {version('KEDA_VERSION')}")
    half = folder / f"{name}.half"
    run_logged(
        ["go", "build", "-v", "-buildvcs=false", "-trimpath", "-ldflags", "-s -w", "-o", half, package],
        what=f"building {name}",
        log=layout.cache / "log" / f"build-{name}.log",
        env=environment(GOFLAGS="-mod=readonly"),
        # Not `go install`: that takes no module whose go.mod replaces another one, and KEDA's does.
        cwd=source(),
    )
    half.rename(folder / name)
