"""Builds the cluster's programs from their Go modules, once for each set of versions.

On two cores without Go's cache: Kubernetes and etcd about 5 minutes, helm 2, CoreDNS 3, Prometheus 3 (promtool after it
half a minute), containerd 2, the Prometheus operator 3, the registry 1.
"""

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from .layout import HERE, Layout, module_version, version
from .progress import Failure, run_logged, say

# With discovery in Kubernetes only: the other clouds' clients are most of the build, and of the program.
KUBERNETES_DISCOVERY = "remove_all_sd,enable_kubernetes_sd"
CONTAINERD = "github.com/containerd/containerd/v2/cmd"
# Snapshotters that no machine here has.
CONTAINERD_WITHOUT = "no_btrfs,no_devmapper,no_zfs"
KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl")
# Programs with a module graph of their own: (package, name of its version in versions.mk, build tags).
STANDALONE = {
    "containerd": (f"{CONTAINERD}/containerd", "CONTAINERD_VERSION", CONTAINERD_WITHOUT),
    "containerd-shim-runc-v2": (f"{CONTAINERD}/containerd-shim-runc-v2", "CONTAINERD_VERSION", ""),
    "ctr": (f"{CONTAINERD}/ctr", "CONTAINERD_VERSION", CONTAINERD_WITHOUT),
    "helm": ("helm.sh/helm/v3/cmd/helm", "HELM_VERSION", ""),
    "coredns": ("github.com/coredns/coredns", "COREDNS_VERSION", ""),
    "prometheus": ("github.com/prometheus/prometheus/cmd/prometheus", "PROMETHEUS_VERSION", KUBERNETES_DISCOVERY),
    "promtool": ("github.com/prometheus/prometheus/cmd/promtool", "PROMETHEUS_VERSION", KUBERNETES_DISCOVERY),
    "registry": ("github.com/distribution/distribution/v3/cmd/registry", "DISTRIBUTION_VERSION", ""),
}
# Its module has replace directives, which `go install` refuses: a go.mod of its own, beside this file, pins it.
PROMETHEUS_OPERATOR = "github.com/prometheus-operator/prometheus-operator"
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "pause")
NODE = ("containerd", "containerd-shim-runc-v2", "ctr", "kubelet", "kube-proxy", "coredns", "helm")


def programs(layout: Layout) -> tuple[str, ...]:
    """What this cluster needs built."""
    return CONTROL_PLANE + NODE if layout.has_node else CONTROL_PLANE


def folder(layout: Layout) -> Path:
    """Where the programs of the pinned versions are kept: one folder for each set of versions."""
    inputs = [HERE / "go.mod", HERE / "go.sum", HERE / "pause" / "main.go"]
    digest = hashlib.sha256(b"\0".join(file.read_bytes() for file in inputs))
    digest.update("\0".join(version(pin) for pin in dict.fromkeys(pin for _, pin, _ in STANDALONE.values())).encode())
    return layout.cache / "bin" / digest.hexdigest()[:16]


def build(layout: Layout, wanted: Iterable[str]) -> Path:
    """Build those of `wanted` that are not there yet; return their folder.

    Raises ValueError for a program that this does not build, Failure with the compiler's words.
    """
    target = folder(layout)
    absent = [name for name in wanted if not (target / name).exists()]
    known = {*CONTROL_PLANE, *KUBERNETES, *STANDALONE}
    if unknown := [name for name in absent if name not in known]:
        raise ValueError(f"There is no program {', '.join(unknown)} to build; there are {', '.join(sorted(known))}.")
    if not absent:
        return target
    target.mkdir(parents=True, exist_ok=True)
    # A half-written program must never be taken for a whole one: build beside, then rename.
    with tempfile.TemporaryDirectory(dir=target, prefix=".build-") as made:
        _build_in_module(layout, [name for name in absent if name not in STANDALONE], Path(made))
        for name in absent:
            if name in STANDALONE:
                _install(layout, name, Path(made))
            shutil.move(Path(made) / name, target / name)
    return target


def build_prometheus_operator(layout: Layout) -> Path:
    """Build the operator of Prometheus; return the folder of the program and, below `crds`, of its CRDs.

    Apart from `build`, because only a test of ours needs it. Raises Failure with the compiler's words.
    """
    module = HERE / "prometheus-operator"
    digest = hashlib.sha256((module / "go.mod").read_bytes() + (module / "go.sum").read_bytes())
    target = layout.cache / "bin" / f"prometheus-operator-{digest.hexdigest()[:16]}"
    if target.exists():
        return target
    say("building the Prometheus operator")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as made:
        whole = Path(made) / "whole"
        program = ["-o", whole / "prometheus-operator", f"{PROMETHEUS_OPERATOR}/cmd/operator"]
        go_build(layout, "prometheus-operator", program, cwd=module)
        source = module_source(PROMETHEUS_OPERATOR, module_version(PROMETHEUS_OPERATOR, module / "go.mod"))
        (whole / "crds").mkdir()
        for crd in (source / "example" / "prometheus-operator-crd").glob("*.yaml"):
            shutil.copyfile(crd, whole / "crds" / crd.name)
        whole.rename(target)
    return target


def go_build(
    layout: Layout, what: str, rest: list[str | Path], *, cwd: Path, linker_flags: str = "-s -w", **variables: str
) -> None:
    """`go build` with the flags that all programs share. Raises Failure with the compiler's words."""
    run_logged(
        ["go", "build", "-v", "-buildvcs=false", "-trimpath", "-ldflags", linker_flags, *rest],
        what=f"building {what}",
        log=layout.cache / "log" / f"build-{what}.log",
        env=environment(**variables),
        cwd=cwd,
    )


def module_source(module: str, release: str) -> Path:
    """A module's folder in Go's cache, checked against Go's checksum database. Raises Failure with Go's words."""
    command = ["go", "mod", "download", "-json", f"{module}@{release}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", env=environment(GOFLAGS="-mod=readonly"))
    if done.returncode:
        raise Failure(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return Path(json.loads(done.stdout)["Dir"])


def environment(**more: str) -> dict[str, str]:
    """The environment of Go's builds: programs without C libraries, by the Go that is installed."""
    return {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", **more}


def _build_in_module(layout: Layout, names: list[str], made: Path) -> None:
    kubernetes = [f"k8s.io/kubernetes/cmd/{name}" for name in names if name in KUBERNETES]
    if kubernetes:
        release = module_version("k8s.io/kubernetes")
        say(f"building Kubernetes {release} from its Go modules ({len(kubernetes)} programs)")
        stamp = "k8s.io/component-base/version"
        major, minor = release.removeprefix("v").split(".")[:2]
        flags = f"-s -w -X {stamp}.gitVersion={release} -X {stamp}.gitMajor={major} -X {stamp}.gitMinor={minor}"
        rest = ["-tags", "providerless", "-o", f"{made}/", *kubernetes]
        go_build(layout, "kubernetes", rest, cwd=HERE, linker_flags=flags)
    if "etcd" in names:
        say(f"building etcd {module_version('go.etcd.io/etcd/server/v3')}")
        go_build(layout, "etcd", ["-o", made / "etcd", "go.etcd.io/etcd/server/v3"], cwd=HERE)
    if "pause" in names:
        go_build(layout, "pause", ["-o", made / "pause", "./pause"], cwd=HERE)


def _install(layout: Layout, name: str, made: Path) -> None:
    package, pin, tags = STANDALONE[name]
    say(f"building {name} {version(pin)}")
    run_logged(
        ["go", "install", "-v", "-trimpath", "-tags", tags, "-ldflags", "-s -w", f"{package}@{version(pin)}"],
        what=f"building {name}",
        log=layout.cache / "log" / f"build-{name}.log",
        env=environment(GOBIN=str(made)),
        cwd=made,
    )
