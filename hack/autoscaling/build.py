"""Builds what scales from its Go modules. On two idle cores without Go's cache: KEDA about 5 minutes, the adapter 3."""

from dataclasses import dataclass
from pathlib import Path

from cluster import images
from cluster.build import go_build, module_source
from cluster.layout import Layout, version
from cluster.progress import say


@dataclass(frozen=True)
class Scaler:
    """A Go module whose programs make one image. `pin` is the name of its version in versions.mk."""

    name: str
    module: str
    pin: str
    programs: dict[str, str]

    @property
    def version(self) -> str:
        """The pinned version of the module."""
        return version(self.pin)

    @property
    def image(self) -> str:
        """The name of the image."""
        return f"glm5.local/{self.name}:{self.version.removeprefix('v')}"

    def source(self) -> Path:
        """The module's folder in Go's cache. Raises Failure with Go's words."""
        return module_source(self.module, self.version)


KEDA = Scaler(
    "keda",
    "github.com/kedacore/keda/v2",
    "KEDA_VERSION",
    {"keda": "./cmd/operator", "keda-adapter": "./cmd/adapter"},
)
PROMETHEUS_ADAPTER = Scaler(
    "prometheus-adapter",
    "sigs.k8s.io/prometheus-adapter",
    "PROMETHEUS_ADAPTER_VERSION",
    {"adapter": "./cmd/adapter"},
)


def ensure_image(layout: Layout, scaler: Scaler) -> Path:
    """Build the image unless this version's archive is there; the archive. Raises Failure with the compiler's words."""
    folder = layout.cache / scaler.name / scaler.version
    archive = folder / f"{scaler.name}.tar"
    if archive.exists():
        return archive
    programs = folder / "programs"
    programs.mkdir(parents=True, exist_ok=True)
    for name, package in scaler.programs.items():
        if not (programs / name).exists():
            say(f"building {name} {scaler.version}")
            half = folder / f"{name}.half"
            # Not `go install`: that takes no module whose go.mod replaces another one, as KEDA's does.
            go_build(layout, name, ["-o", half, package], cwd=scaler.source(), GOFLAGS="-mod=readonly")
            half.rename(programs / name)
    recipe = Path(__file__).parent / "Containerfile"
    images.build_archive(layout, image=scaler.image, recipe=recipe, context=folder, archive=archive)
    return archive
