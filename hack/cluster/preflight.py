"""What would make the cluster fail later, found at once and said in a sentence with its remedy."""

import os
import shutil
import socket
from pathlib import Path

from . import packages, sandbox
from .layout import HERE, Layout
from .progress import Failure

GIB = 1 << 30
# Measured: control plane and node 0.65 GiB; the API server while starting a little more.
NODE_MEMORY = int(1.5 * GIB)
CONTROL_PLANE_MEMORY = int(0.8 * GIB)
# The linker of kube-apiserver and Go's caches: what a first build needs beyond the programs themselves.
BUILD_DISK = 12 * GIB
RUN_DISK = 3 * GIB


def want_root() -> None:
    """Raise Failure for anyone but root, who could not even see the cluster's processes."""
    if os.geteuid() != 0:
        raise Failure("This needs root (namespaces, containerd, kubelet). Run it again with sudo, or as root.")


def check(layout: Layout, *, to_build: bool, memory: int = 0, disk: int = 0) -> None:
    """Raise Failure with every reason why `up` cannot work here. `memory` and `disk` are bytes wanted on top."""
    wanted_memory = memory + (NODE_MEMORY if layout.has_node else CONTROL_PLANE_MEMORY)
    problems = [
        *_tools(to_build),
        *_memory(wanted_memory),
        *_disk(layout.cache, disk + (BUILD_DISK if to_build else RUN_DISK)),
        *_disk(layout.state, disk + RUN_DISK),
        *_port(layout),
    ]
    if problems:
        raise Failure("\n".join(problems))


def _tools(to_build: bool) -> list[str]:
    problems = []
    for tool in ("unshare", "nsenter", "mount"):
        if shutil.which(tool) is None:
            problems.append(f"{tool} is not installed. Install Debian's package util-linux.")
    if to_build:
        wanted = next(line.split()[1] for line in (HERE / "go.mod").read_text().splitlines() if line.startswith("go "))
        found = packages.go_version()
        if found is None:
            problems.append(f"Go is not on the PATH; the cluster is built with it. Install Go {wanted} or newer.")
        elif found < tuple(int(part) for part in wanted.split(".")[:2]):
            problems.append(f"Go {found[0]}.{found[1]} is too old to build the cluster with. Install Go {wanted}.")
    return problems


def _memory(wanted: int) -> list[str]:
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(fields["MemAvailable"].split()[0]) * 1024
    if available >= wanted:
        return []
    return [
        f"{available / GIB:.1f} GiB of memory are available, {wanted / GIB:.1f} GiB are needed. "
        "Stop other programs or use a larger machine."
    ]


def _disk(folder: Path, wanted: int) -> list[str]:
    there = folder
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    if free >= wanted:
        return []
    return [
        f"{free / GIB:.1f} GiB are free at {folder}, {wanted / GIB:.1f} GiB are needed. Free some, or point "
        "CACHE= and STATE= at a larger disk."
    ]


def _port(layout: Layout) -> list[str]:
    if sandbox.doors(layout):
        return []
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", layout.api_port))
        except OSError:
            return [
                f"Port {layout.api_port} on 127.0.0.1 is taken by another program "
                f"(ss -ltnp 'sport = :{layout.api_port}' shows which). Stop it, or choose another port: API_PORT=7443."
            ]
    return []
