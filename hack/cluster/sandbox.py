"""The Linux namespaces that a cluster lives in, and the doors into them.

A sandbox has its own network, mounts and process ids. Its first process is `pause`; when that ends, the kernel ends
every other process in it, and interfaces, iptables chains, network namespaces and mounts vanish with them. So whatever
state a killed run left behind, `destroy` has one thing to end. A door is a port on the host's 127.0.0.1 that leads to
the same port inside: two `socat`s with a Unix socket between them, so that the host uses no address but loopback.
"""

import contextlib
import json
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from . import image_store, processes
from .layout import NODE_ADDRESS, Layout
from .progress import Failure, wait_until

# What kubelet sets for the whole machine; put back when the sandbox goes.
KERNEL_SETTINGS = (
    "vm/overcommit_memory",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)

# With socat's own block of 8 KiB, an image of 2 GB takes minutes through a door.
SOCAT = ("socat", "-b", "262144")

# Share of the processor that all pods together get, in processes of the host that want it at the same time.
SHARE = 16

# $1 is the state folder. /run and /var/lib are private, so that containerd's, CNI's and kubelet's fixed paths there
# leave no trace on the host; the state folder is laid back into /var/lib. Mounts must be shared for kubelet's volumes.
SETUP = """
set -eu
mount -t tmpfs -o mode=755 run /run
mkdir -p /run/state /run/lock "$1/var-log"
mount --bind "$1" /run/state
mount -t tmpfs -o mode=755 lib /var/lib
mkdir -p "$1"
mount --bind /run/state "$1"
mount --bind "$1/var-log" /var/log
mount --make-rshared /
ip link set lo up
ip address add $2/32 dev lo
echo 1 > /proc/sys/net/ipv4/ip_forward
if [ -e /proc/sys/net/bridge/bridge-nf-call-iptables ]; then echo 1 > /proc/sys/net/bridge/bridge-nf-call-iptables; fi
"""


def _marker(layout: Layout) -> str:
    return f"--cluster={layout.state}"


def find(layout: Layout) -> int | None:
    """The host's id of the sandbox's first process, or None when there is no sandbox."""
    for process in processes.processes():
        if process.argv[-1] == _marker(layout) and Path(process.argv[0]).name == "pause":
            return process.pid
    return None


def create(layout: Layout, pause: Path) -> None:
    """Make the sandbox and lay out its mounts and loopback interface. Raises Failure when the kernel refuses."""
    layout.run.mkdir(parents=True, exist_ok=True)
    layout.logs.mkdir(parents=True, exist_ok=True)
    _remember_kernel_settings(layout)
    with (layout.logs / "sandbox.log").open("wb") as log:
        subprocess.Popen(
            ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", pause, _marker(layout)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    wait_until(
        "the sandbox's first process",
        lambda: find(layout) is not None,
        timeout=20,
        hint=f"The kernel may not allow namespaces here (a container without privileges?); see {log.name}.",
        every=0.05,
    )
    done = subprocess.run(
        enter(layout, ["sh", "-c", SETUP, "setup", str(layout.state), NODE_ADDRESS]), capture_output=True, text=True
    )
    if done.returncode:
        raise Failure(f"The sandbox could not be laid out: {done.stderr.strip()}")


def enter(layout: Layout, command: Sequence[str | Path]) -> list[str]:
    """`command` as it has to be called on the host to run inside the sandbox. Raises Failure without a sandbox."""
    pid = find(layout)
    if pid is None:
        raise Failure("The cluster is not running. Start it: make cluster-up")
    return ["nsenter", f"--target={pid}", "--net", "--mount", "--pid", "--", *(str(part) for part in command)]


def start(layout: Layout, name: str, command: Sequence[str | Path]) -> None:
    """Start a long-running program inside the sandbox; its output goes to log/NAME.log in the state folder."""
    with (layout.logs / f"{name}.log").open("ab") as log:
        subprocess.Popen(
            enter(layout, command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/"
        )


def members(layout: Layout) -> list[processes.Process]:
    """Every process directly in the sandbox (not those of pods, which have namespaces of their own below it)."""
    pid = find(layout)
    if pid is None:
        return []
    namespace = processes.pid_namespace(pid)
    return [p for p in processes.processes() if processes.pid_namespace(p.pid) == namespace]


def running(layout: Layout) -> set[str]:
    """The names of the programs that run in the sandbox."""
    return {Path(member.argv[0]).name for member in members(layout)}


def wait_for(layout: Layout, program: str, what: str, check: Callable[[], bool], *, timeout: float) -> None:
    """Wait for `check`, which `program` is to make true. Raises Failure at once when the program ends."""
    log = layout.logs / f"{program}.log"

    def still_there() -> bool:
        if check():
            return True
        if program not in running(layout):
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-5:])
            raise Failure(f"{program} has ended while we waited for {what}. Its last lines ({log}):\n{tail}")
        return False

    wait_until(what, still_there, timeout=timeout, hint=f"Look at {log}.")


def open_door(layout: Layout, port: int) -> None:
    """Lead 127.0.0.1:`port` of the host to 127.0.0.1:`port` of the sandbox."""
    socket = layout.run / f"door-{port}.sock"
    socket.unlink(missing_ok=True)
    start(layout, f"door-{port}", [*SOCAT, f"UNIX-LISTEN:{socket},fork,mode=600", f"TCP:127.0.0.1:{port}"])
    with (layout.logs / f"door-{port}-host.log").open("ab") as log:
        subprocess.Popen(
            [*SOCAT, f"TCP-LISTEN:{port},bind=127.0.0.1,reuseaddr,fork", f"UNIX-CONNECT:{socket}"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    wait_until(f"the door at port {port}", socket.exists, timeout=10, hint=f"See {log.name}.", every=0.05)


def doors(layout: Layout) -> list[processes.Process]:
    """The host's ends of this sandbox's doors, open connections included."""
    prefix = f"UNIX-CONNECT:{layout.run}/door-"
    return [p for p in processes.processes() if p.argv[0] == "socat" and p.argv[-1].startswith(prefix)]


def destroy(layout: Layout) -> None:
    """End the sandbox and remove its state: nothing of it is left on the host. Fine when there is none."""
    for door in doors(layout):
        processes.kill(door.pid)
    pid = find(layout)
    if pid is not None:
        processes.kill(pid)
        wait_until(
            "the end of the sandbox's processes",
            lambda: find(layout) is None and not Path(f"/proc/{pid}").exists(),
            timeout=60,
            hint="A process in it hangs in the kernel; only a reboot ends that.",
        )
    _remove_control_groups(layout)
    _restore_kernel_settings(layout)
    if layout.state.exists():
        _forbid_mounts_below(layout.state)
        image_store.keep(layout)
        # Images have some 100,000 files: rm takes a tenth of shutil's time for them.
        subprocess.run(["rm", "-rf", "--one-file-system", str(layout.state)], check=True)


def _forbid_mounts_below(folder: Path) -> None:
    """Failure if anything is mounted in `folder` on the host: removing it would remove what is mounted there."""
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    inside = [mount for mount in mounts if mount == str(folder) or mount.startswith(f"{folder}/")]
    if inside:
        raise Failure(f"{inside[0]} is a mount on the host, made by something else. Unmount it: umount {inside[0]}")


def control_group_folders(layout: Layout) -> list[Path]:
    """Where this cluster's control group is or is to be: a folder a controller (version 1), or just one (version 2)."""
    root = Path("/sys/fs/cgroup")
    if (root / "cgroup.controllers").exists():
        return [root / layout.cgroup.lstrip("/")]
    return [
        folder / layout.cgroup.lstrip("/")
        for folder in sorted(root.iterdir())
        if folder.is_dir() and not folder.is_symlink()
    ]


def make_control_groups(layout: Layout) -> None:
    """Make the control group that the pods' are made under."""
    root = Path("/sys/fs/cgroup")
    controllers = root / "cgroup.controllers"
    if controllers.exists():
        for controller in controllers.read_text().split():
            with contextlib.suppress(OSError):  # some cannot be handed down while processes are in the root group
                (root / "cgroup.subtree_control").write_text(f"+{controller}")
    # By default the whole group, with all pods in it, would get as much of a busy machine as one process outside.
    shares = {"cpu.shares": 1024 * SHARE, "cpu.weight": min(100 * SHARE, 10000)}
    for folder in control_group_folders(layout):
        folder.mkdir(exist_ok=True)
        for file, value in shares.items():
            if (folder / file).exists():
                (folder / file).write_text(str(value))


def _remove_control_groups(layout: Layout) -> None:
    """Remove the control groups, the innermost first; the kernel may need a moment after the last process has gone."""
    for folder in control_group_folders(layout):
        if not folder.exists():
            continue
        inner = [Path(parent) for parent, _, _ in os.walk(folder, topdown=False)]
        for group in inner:
            wait_until(
                f"an empty control group {group}", lambda g=group: _removed(g), timeout=20, hint="A process is left."
            )


def _removed(group: Path) -> bool:
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _remember_kernel_settings(layout: Layout) -> None:
    file = layout.state / "kernel-settings.json"
    if file.exists():
        return
    present = {name: Path("/proc/sys", name) for name in KERNEL_SETTINGS if Path("/proc/sys", name).exists()}
    file.write_text(json.dumps({name: path.read_text().strip() for name, path in present.items()}))


def _restore_kernel_settings(layout: Layout) -> None:
    file = layout.state / "kernel-settings.json"
    with contextlib.suppress(OSError, ValueError):
        for name, value in json.loads(file.read_text()).items():
            if Path("/proc/sys", name).read_text().strip() != value:
                Path("/proc/sys", name).write_text(value)
