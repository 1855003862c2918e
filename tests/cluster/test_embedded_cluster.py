"""The embedded cluster itself: starts clean after anything, and leaves nothing. Runs on a second one of its own."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cluster import build, lifecycle, sandbox
from cluster.kubectl import Kubectl
from cluster.layout import REPOSITORY, layout
from cluster.progress import Failure

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

STATE = "/var/lib/glm5-cluster-test"
PORT = "6444"
SETTINGS = {
    **os.environ,
    "STATE": STATE,
    "API_PORT": PORT,
    "KEEP_IMAGES": "0",
    "PYTHONPATH": str(REPOSITORY / "hack"),
}
UP = [sys.executable, "-m", "cluster", "up"]


@pytest.fixture
def cluster():
    cluster = layout("full", SETTINGS)
    lifecycle.down(cluster)
    yield cluster
    lifecycle.down(cluster)


def traces():
    """What a cluster could leave on the host: firewall rules, interfaces, mounts, control groups, processes."""
    rules = subprocess.run(["iptables-save"], capture_output=True, text=True, check=True).stdout
    mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if STATE in line]
    groups = [str(path) for path in Path("/sys/fs/cgroup").glob(f"*/{Path(STATE).name}")]
    found = subprocess.run(["pgrep", "-f", STATE], capture_output=True, text=True, check=False).stdout.split()
    return {
        "rules": [line for line in rules.splitlines() if not line.startswith("#")],
        "interfaces": sorted(os.listdir("/sys/class/net")),
        "mounts": mounts,
        "groups": groups,
        "processes": found,
        "state": Path(STATE).exists(),
        "network namespaces": sorted(os.listdir("/run/netns")) if Path("/run/netns").exists() else [],
        "kernel settings": [Path("/proc/sys", name).read_text() for name in ("vm/overcommit_memory", "kernel/panic")],
    }


def kubectl(cluster):
    return Kubectl(f"{build.folder(cluster)}/kubectl", cluster.kubeconfig)


def test_it_comes_up_with_eight_gpus_and_dns_and_goes_without_a_trace(cluster):
    before = traces()
    lifecycle.up(cluster)
    node = kubectl(cluster).get("node", "node-1")
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "8"
    kubectl(cluster).run("rollout", "status", "deployment/coredns", "-n", "kube-system", "--timeout=60s", timeout=70)
    assert lifecycle.status(cluster).healthy
    lifecycle.down(cluster)
    after = traces()
    # Another cluster may be up beside this one: then kernel settings are that one's.
    assert after == before


def test_a_healthy_cluster_is_used_again_as_it_is(cluster):
    lifecycle.up(cluster)
    first = sandbox.find(cluster)
    begin = time.monotonic()
    lifecycle.up(cluster)
    assert sandbox.find(cluster) == first
    assert time.monotonic() - begin < 10


@pytest.mark.parametrize("program", ["kubelet", "etcd"])
def test_a_cluster_whose_program_was_killed_is_named_unhealthy_and_started_over(cluster, program):
    lifecycle.up(cluster)
    first = sandbox.find(cluster)
    victim = next(member.pid for member in sandbox.members(cluster) if Path(member.argv[0]).name == program)
    os.kill(victim, signal.SIGKILL)
    time.sleep(0.5)
    seen = lifecycle.status(cluster)
    assert not seen.healthy
    assert program in seen.not_running
    lifecycle.up(cluster)
    assert sandbox.find(cluster) != first
    assert lifecycle.status(cluster).healthy


@pytest.mark.parametrize("seconds", [1, 6])
def test_a_run_killed_in_the_middle_is_started_over(cluster, seconds):
    run = subprocess.Popen(UP, env=SETTINGS, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(seconds)
    run.kill()
    run.wait()
    lifecycle.up(cluster)
    assert lifecycle.status(cluster).healthy


def test_a_taken_port_is_said_at_once_with_the_remedy(cluster):
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", int(PORT)))
        taken.listen()
        with pytest.raises(Failure, match=rf"Port {PORT} .* is taken .* API_PORT="):
            lifecycle.up(cluster)
    assert not Path(STATE).exists()
