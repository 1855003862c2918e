"""Up, down and status of a cluster: the order in which the other modules are used."""

import contextlib
import fcntl
import http.client
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from . import build, control_plane, image_store, node, packages, pki, preflight, processes, sandbox
from .layout import Layout
from .progress import say, wait_until


@contextlib.contextmanager
def alone(layout: Layout) -> Iterator[None]:
    """Hold the cluster's lock: two runs of up or down must not meet. Waits for the other one. Only root may."""
    preflight.want_root()
    layout.cache.mkdir(parents=True, exist_ok=True)
    with (layout.cache / f"{layout.state.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another run is starting or stopping this cluster; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def up(layout: Layout, *, memory: int = 0, disk: int = 0) -> Path:
    """Bring the cluster up and return the folder of its programs.

    A healthy one is used as it is; anything else that is found is removed and started over. `memory` and `disk` are
    bytes that the caller wants on top of the cluster's own. Raises Failure.
    """
    with alone(layout):
        binaries = build.folder(layout)
        wanted = build.programs(layout)
        to_build = any(not (binaries / name).exists() for name in wanted)
        preflight.check(layout, to_build=to_build, memory=memory, disk=disk)
        if not to_build and is_healthy(layout, binaries):
            say(f"using the cluster that is up (KUBECONFIG={layout.kubeconfig})")
            return binaries
        wanted_packages = packages.WITH_NODE if layout.has_node else packages.CONTROL_PLANE
        packages.ensure(wanted_packages, layout.cache / "log" / "apt.log")
        build.build(layout, wanted)
        if sandbox.find(layout) or layout.state.exists():
            say("removing what an earlier run left")
        sandbox.destroy(layout)
        say("starting the control plane")
        sandbox.create(layout, binaries / "pause")
        image_store.take(layout)
        pki.make(layout)
        control_plane.start(layout, binaries, ("etcd", "kube-apiserver"))
        sandbox.open_door(layout, layout.api_port)
        sandbox.wait_for(
            layout, "kube-apiserver", "the API server to be ready", lambda: api_is_ready(layout), timeout=120
        )
        # The controller manager ends when the API server does not answer its first question.
        control_plane.start(layout, binaries, ("kube-controller-manager", "kube-scheduler"))
        if layout.has_node:
            node.up(layout, binaries)
        wait_until(
            "all of the cluster's programs to run",
            lambda: not missing_programs(layout, binaries),
            timeout=10,
            hint=f"The logs are in {layout.logs}.",
        )
        layout.came_up.write_text(_fingerprint(layout, binaries))
        say(f"the cluster is up: export KUBECONFIG={layout.kubeconfig} PATH={binaries}:$PATH")
        return binaries


def down(layout: Layout) -> None:
    """Stop the cluster and remove all of it but the cache of built things."""
    with alone(layout):
        sandbox.destroy(layout)


def is_healthy(layout: Layout, binaries: Path) -> bool:
    """Whether the cluster was brought up whole by this version, all its programs run and it answers."""
    with contextlib.suppress(OSError):
        if layout.came_up.read_text() != _fingerprint(layout, binaries):
            return False
        return (
            not missing_programs(layout, binaries)
            and api_is_ready(layout)
            and (not layout.has_node or node.is_ready(layout, binaries))
        )
    return False


def missing_programs(layout: Layout, binaries: Path) -> list[str]:
    """Those of the cluster's programs that should run and do not."""
    running = sandbox.running(layout)
    expected = list(control_plane.commands(layout, binaries))
    if layout.has_node:
        expected += node.commands(layout, binaries)
    absent = [name for name in expected if name not in running]
    return absent if sandbox.doors(layout) else [*absent, f"the door at port {layout.api_port}"]


def api_is_ready(layout: Layout) -> bool:
    """Whether the API server answers that it is ready, with the certificate that we made for it."""
    try:
        context = ssl.create_default_context(cafile=layout.pki / "ca.crt")
        context.load_cert_chain(layout.pki / "admin.crt", layout.pki / "admin.key")
        connection = http.client.HTTPSConnection("127.0.0.1", layout.api_port, context=context, timeout=5)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        finally:
            connection.close()
    except (OSError, http.client.HTTPException):
        return False


@dataclass(frozen=True)
class Status:
    """What `status` shows."""

    running: bool
    healthy: bool
    not_running: list[str]
    memory: int


def status(layout: Layout) -> Status:
    """Look, and change nothing. `memory` is that of the cluster's own programs, in bytes. Only root may."""
    preflight.want_root()
    binaries = build.folder(layout)
    members = sandbox.members(layout)
    return Status(
        running=bool(members),
        healthy=bool(members) and is_healthy(layout, binaries),
        not_running=missing_programs(layout, binaries) if members else [],
        memory=processes.proportional_memory([member.pid for member in members]),
    )


def _fingerprint(layout: Layout, binaries: Path) -> str:
    return f"{binaries} {layout.api_port}"
