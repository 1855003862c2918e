"""Debian packages that the embedded cluster and the image builds need; installed when absent."""

import os
import shutil
import subprocess
from pathlib import Path

from .progress import Failure, run_logged, say

# program (or file) that shows it is there: package
CONTROL_PLANE = {
    "ip": "iproute2",
    "openssl": "openssl",
    "socat": "socat",
}
WITH_NODE = {
    **CONTROL_PLANE,
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "buildah": "buildah",
}


def missing(wanted: dict[str, str]) -> list[str]:
    """The packages of `wanted` whose program is not on this machine."""

    def present(program: str) -> bool:
        return Path(program).exists() if program.startswith("/") else shutil.which(program) is not None

    return sorted({package for program, package in wanted.items() if not present(program)})


def ensure(wanted: dict[str, str], log: Path) -> None:
    """Install what is missing with apt. Raises Failure on a machine without apt, naming the packages."""
    absent = missing(wanted)
    if not absent:
        return
    if shutil.which("apt-get") is None:
        raise Failure(
            f"Not installed: {', '.join(absent)} (Debian's names), and this machine has no apt-get. "
            "Install them with your system's package manager, then run this again."
        )
    say(f"installing Debian packages: {' '.join(absent)}")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run_logged(["apt-get", "update"], what="apt-get update", log=log, env=env)
    install = ["apt-get", "install", "--yes", "--no-install-recommends", *absent]
    run_logged(install, what="apt-get install", log=log, env=env)
    still = missing(wanted)
    if still:
        raise Failure(f"Installed, but still not found: {', '.join(still)}. Look at {log}.")


def go_version() -> tuple[int, int] | None:
    """Major and minor version of the Go on the path, None without one."""
    if shutil.which("go") is None:
        return None
    words = subprocess.run(["go", "env", "GOVERSION"], capture_output=True, text=True).stdout.strip()
    numbers = words.removeprefix("go").split(".")
    return (int(numbers[0]), int(numbers[1])) if len(numbers) > 1 and numbers[1].isdigit() else None
