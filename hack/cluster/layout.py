"""Where the embedded cluster keeps its things, and the addresses it uses. Nothing here touches the machine."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent

NODE_NAME = "node-1"
# An address on the sandbox's own loopback interface: pods must reach the API server at something other than 127.0.0.1.
NODE_ADDRESS = "172.31.255.1"
SERVICE_RANGE = "10.96.0.0/16"
API_SERVICE_ADDRESS = "10.96.0.1"
DNS_ADDRESS = "10.96.0.10"
POD_RANGE = "10.244.0.0/24"
BRIDGE = "glm5br0"
PRETEND_GPUS = 8
PAUSE_IMAGE = "glm5.local/pause:1"


@dataclass(frozen=True)
class Profile:
    """A kind of cluster: what it is called, where its state lies, its API port on the host, whether it has a node."""

    name: str
    state: Path
    api_port: int
    has_node: bool


PROFILES = {
    "full": Profile("full", Path("/var/lib/glm5-cluster"), 6443, has_node=True),
    "control-plane": Profile("control-plane", Path("/var/lib/glm5-control-plane"), 16443, has_node=False),
}


@dataclass(frozen=True)
class Layout:
    """Every path and port of one cluster.

    `state` dies with the cluster, `cache` outlives it. `api_port` is on 127.0.0.1, inside the sandbox and out.
    `keeps_images`: the node starts with the images of the last one, and leaves its own to the next.
    """

    profile: str
    has_node: bool
    state: Path
    cache: Path
    api_port: int
    keeps_images: bool

    @property
    def pki(self) -> Path:
        return self.state / "pki"

    @property
    def logs(self) -> Path:
        return self.state / "log"

    @property
    def run(self) -> Path:
        return self.state / "run"

    @property
    def volumes(self) -> Path:
        return self.state / "volumes"

    @property
    def images(self) -> Path:
        """containerd's folder."""
        return self.state / "containerd"

    @property
    def kept_images(self) -> Path:
        """Where it lies while no cluster uses it."""
        return self.cache / "node-images"

    @property
    def came_up(self) -> Path:
        """A file that says with which programs the cluster came up whole."""
        return self.state / "fingerprint"

    @property
    def containerd_socket(self) -> Path:
        return self.run / "containerd.sock"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig: good on the host and inside the sandbox."""
        return self.state / "admin.kubeconfig"

    @property
    def server(self) -> str:
        return f"https://127.0.0.1:{self.api_port}"

    @property
    def cgroup(self) -> str:
        """The control group under which all pods of this cluster live; its own, so that it can be removed whole."""
        return f"/{self.state.name}"


def layout(profile: str, environ: dict[str, str] | None = None) -> Layout:
    """The layout of `profile`, with the environment's STATE, CACHE and API_PORT in place of the defaults.

    KEEP_IMAGES=0 starts a node without images and leaves none behind. Raises ValueError when API_PORT is not a port
    number or STATE is not an absolute path below the root.
    """
    environ = dict(os.environ) if environ is None else environ
    chosen = PROFILES[profile]
    port = environ.get("API_PORT") or str(chosen.api_port)
    if not port.isdigit() or not 1024 <= int(port) <= 65535:
        raise ValueError(f"API_PORT={port} is not a port between 1024 and 65535.")
    state = Path(environ.get("STATE") or chosen.state)
    if not state.is_absolute() or len(state.parts) < 3:
        raise ValueError(f"STATE={state} must be an absolute path of its own, such as {chosen.state}.")
    cache = Path(environ.get("CACHE") or "/var/cache/glm5")
    keeps_images = chosen.has_node and environ.get("KEEP_IMAGES") != "0"
    return Layout(chosen.name, chosen.has_node, state, cache, int(port), keeps_images)


def version(name: str) -> str:
    """The value of `name` in versions.mk, where the versions stand of what is neither Python nor in go.mod."""
    text = (REPOSITORY / "versions.mk").read_text()
    found = re.search(rf"^{re.escape(name)}\s*:=\s*(\S+)", text, re.MULTILINE)
    if not found:
        raise KeyError(f"versions.mk names no {name}")
    return found.group(1)


def module_version(module: str, file: Path = HERE / "go.mod") -> str:
    """The version of a Go module in a go.mod: the one beside this file."""
    found = re.search(rf"^\s*{re.escape(module)} (v\S+)", file.read_text(), re.MULTILINE)
    if not found:
        raise KeyError(f"{file} requires no {module}")
    return found.group(1)
