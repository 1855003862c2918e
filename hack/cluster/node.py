"""The one node: containerd with a bridge network, kubelet, kube-proxy, and what runs on it from the start."""

import json
from pathlib import Path
from string import Template
from typing import Any

from . import images, processes, sandbox
from .kubectl import Kubectl
from .layout import (
    BRIDGE,
    DNS_ADDRESS,
    HERE,
    NODE_ADDRESS,
    NODE_NAME,
    PAUSE_IMAGE,
    POD_RANGE,
    PRETEND_GPUS,
    Layout,
)
from .progress import say

VOLUMES = 4


def commands(layout: Layout, binaries: Path) -> dict[str, list[str]]:
    """Each program's command line, by its name."""
    return {
        "containerd": [f"{binaries}/containerd", f"--config={layout.state}/containerd.toml"],
        "kubelet": [
            f"{binaries}/kubelet",
            f"--config={layout.state}/kubelet.json",
            f"--kubeconfig={layout.state}/kubelet.kubeconfig",
            f"--hostname-override={NODE_NAME}",
            f"--node-ip={NODE_ADDRESS}",
            f"--root-dir={layout.state}/kubelet",
        ],
        "kube-proxy": [f"{binaries}/kube-proxy", f"--config={layout.state}/kube-proxy.json"],
    }


def kubectl(layout: Layout, binaries: Path) -> Kubectl:
    """Make a kubectl that is this cluster's administrator."""
    return Kubectl(f"{binaries}/kubectl", layout.kubeconfig)


def up(layout: Layout, binaries: Path) -> None:
    """Start the node and wait until it is Ready, has its GPUs, and DNS is being started. Raises Failure."""
    say("starting containerd, kubelet and kube-proxy")
    archives = [images.ensure_own(layout, name) for name in ("pause", "coredns")]
    _write_configuration(layout, binaries)
    sandbox.make_control_groups(layout)
    programs = commands(layout, binaries)
    sandbox.start(layout, "containerd", programs["containerd"])
    sandbox.wait_for(layout, "containerd", "containerd to answer", lambda: images.answers(layout), timeout=60)
    sandbox.start(layout, "kube-proxy", programs["kube-proxy"])
    # After containerd has answered: kubelet ends when its first question to it is not answered (see `asked_too_early`).
    sandbox.start(layout, "kubelet", programs["kubelet"])
    for archive in archives:
        images.load(layout, archive)
    _wait_ready(layout, binaries)
    _announce_gpus(layout, binaries)
    _apply_addons(layout, binaries)


def stop_kubelet(layout: Layout) -> None:
    """End the kubelet alone: to the API server the node falls silent, while its pods' processes go on."""
    for member in sandbox.members(layout):
        if Path(member.argv[0]).name == "kubelet":
            processes.kill(member.pid)


def start_kubelet(layout: Layout, binaries: Path) -> None:
    """Start the kubelet again and wait until the node takes pods. Raises Failure."""
    sandbox.start(layout, "kubelet", commands(layout, binaries)["kubelet"])
    _wait_ready(layout, binaries)
    _announce_gpus(layout, binaries)


def _wait_ready(layout: Layout, binaries: Path) -> None:
    def ready() -> bool:
        if is_ready(layout, binaries):
            return True
        log = layout.logs / "kubelet.log"
        if "kubelet" not in sandbox.running(layout) and asked_too_early(log.read_text(errors="replace")):
            sandbox.start(layout, "kubelet", commands(layout, binaries)["kubelet"])
        return False

    sandbox.wait_for(layout, "kubelet", "a node that is Ready", ready, timeout=120)


def asked_too_early(log: str) -> bool:
    """Whether a kubelet ended only because containerd, though it answered, was not ready for it yet."""
    return any("server is not initialized yet" in line for line in log.splitlines()[-5:])


def is_ready(layout: Layout, binaries: Path) -> bool:
    """Whether kubelet reports the node as Ready, and pods may be scheduled to it."""
    answer = kubectl(layout, binaries).try_run("get", "node", NODE_NAME, "-o", "json")
    return answer.returncode == 0 and takes_pods(json.loads(answer.stdout))


def takes_pods(node: dict[str, Any]) -> bool:
    """Whether a node (as the API server returns it) is Ready and free of the taints that its conditions bring.

    The controller manager takes the taint `node.kubernetes.io/not-ready` away only after kubelet reports Ready.
    """
    conditions = {item["type"]: item["status"] for item in node.get("status", {}).get("conditions", [])}
    taints = node["spec"].get("taints", [])
    return conditions.get("Ready") == "True" and not any(
        taint["key"].startswith("node.kubernetes.io/") for taint in taints
    )


def _announce_gpus(layout: Layout, binaries: Path) -> None:
    """Pretend GPUs: an extended resource in the node's status, as a device plugin would announce it."""
    # Kubelet would derive allocatable from capacity by itself, but only with its next report, 10 s later.
    patch = [
        {"op": "add", "path": f"/status/{kind}/nvidia.com~1gpu", "value": str(PRETEND_GPUS)}
        for kind in ("capacity", "allocatable")
    ]
    status = ("node", NODE_NAME, "--subresource=status")
    kubectl(layout, binaries).run("patch", *status, "--type=json", "-p", json.dumps(patch))


def _apply_addons(layout: Layout, binaries: Path) -> None:
    for number in range(VOLUMES):
        folder = layout.volumes / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)  # pods that run as nobody write into them
    kubectl(layout, binaries).apply([persistent_volume(layout, number) for number in range(VOLUMES)])
    values = {"DNS_ADDRESS": DNS_ADDRESS, "COREDNS_IMAGE": images.coredns_image()}
    for manifest in sorted((HERE / "manifests").glob("*.yaml")):
        kubectl(layout, binaries).apply(Template(manifest.read_text()).substitute(values))


def persistent_volume(layout: Layout, number: int) -> dict[str, Any]:
    """A volume that any claim without a storage class can have: a folder of the node."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"local-{number}"},
        "spec": {
            "capacity": {"storage": "20Gi"},
            "accessModes": ["ReadWriteOnce", "ReadWriteMany", "ReadOnlyMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": str(layout.volumes / str(number)), "type": "Directory"},
        },
    }


def _write_configuration(layout: Layout, binaries: Path) -> None:
    (layout.state / "cni").mkdir(exist_ok=True)
    (layout.state / "cni" / "10-glm5.conflist").write_text(json.dumps(pod_network(), indent=1))
    (layout.state / "containerd.toml").write_text(containerd_configuration(layout, binaries))
    (layout.state / "kubelet.json").write_text(json.dumps(kubelet_configuration(layout), indent=1))
    (layout.state / "kube-proxy.json").write_text(json.dumps(kube_proxy_configuration(layout), indent=1))
    # Nothing leads out of the sandbox, so there is no name server to ask either.
    (layout.state / "resolv.conf").write_text("")


def pod_network() -> dict[str, Any]:
    """CNI's configuration: one bridge, addresses handed out by host-local."""
    bridge = {
        "type": "bridge",
        "bridge": BRIDGE,
        "isGateway": True,
        "ipMasq": True,
        "hairpinMode": True,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": POD_RANGE}]], "routes": [{"dst": "0.0.0.0/0"}]},
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "0.4.0", "name": "glm5", "plugins": [bridge, ports]}


def containerd_configuration(layout: Layout, binaries: Path) -> str:
    """containerd's configuration, everything of it below the state folder."""
    return f"""version = 3
root = "{layout.images}"
state = "{layout.run}/containerd"
[grpc]
  address = "{layout.containerd_socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{layout.state}/containerd-opt"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{PAUSE_IMAGE}"
[plugins."io.containerd.cri.v1.runtime"]
  # On machines without CAP_SYS_RESOURCE runc may not lower oom_score_adj, and no pod's sandbox would start.
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      # Not one of another containerd that may be installed on this machine: PATH would come first.
      runtime_path = "{binaries}/containerd-shim-runc-v2"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
        SystemdCgroup = false
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["/usr/lib/cni"]
    conf_dir = "{layout.state}/cni"
"""


def kubelet_configuration(layout: Layout) -> dict[str, Any]:
    """kubelet's configuration for both versions of control groups."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{layout.pki}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{layout.pki}/kubelet.crt",
        "tlsPrivateKeyFile": f"{layout.pki}/kubelet.key",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": layout.cgroup,
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": ["pods"],
        "containerRuntimeEndpoint": f"unix://{layout.containerd_socket}",
        "clusterDNS": [DNS_ADDRESS],
        "clusterDomain": "cluster.local",
        "resolvConf": f"{layout.state}/resolv.conf",
        "podCIDR": POD_RANGE,
        # Images come in by hand: one that is collected would not come back.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
    }


def kube_proxy_configuration(layout: Layout) -> dict[str, Any]:
    """kube-proxy's configuration; connection tracking is left as the kernel has it."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": f"{layout.state}/proxy.kubeconfig"},
        "hostnameOverride": NODE_NAME,
        "mode": "iptables",
        "clusterCIDR": POD_RANGE,
        "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }
