"""A Debian root file system with Python, made from Debian's packages: the base where no registry is at hand."""

import shutil
from pathlib import Path

from cluster import packages
from cluster.progress import run_logged

PACKAGES = ("ca-certificates", "python3", "python3-venv")
# Of no use in a container: 60 MB.
NEEDLESS = (
    "usr/share/doc",
    "usr/share/info",
    "usr/share/locale",
    "usr/share/man",
    "var/cache/apt",
    "var/lib/apt/lists",
    "var/log/bootstrap.log",
)


def root_file_system(release: str, directory: Path, log: Path) -> None:
    """Make `directory`/rootfs.tar of Debian `release`. Raises Failure with debootstrap's words."""
    packages.ensure({"debootstrap": "debootstrap"}, log)
    root = directory / "rootfs"
    shutil.rmtree(root, ignore_errors=True)
    include = f"--include={','.join(PACKAGES)}"
    run_logged(
        ["debootstrap", "--variant=minbase", include, release, root], what=f"installing Debian {release}", log=log
    )
    for path in NEEDLESS:
        shutil.rmtree(root / path, ignore_errors=True)
    (root / "var/lib/apt/lists/partial").mkdir(parents=True)
    (root / "var/cache/apt/archives/partial").mkdir(parents=True)
    tar = ["tar", "--create", "--file", directory / "rootfs.tar", "--directory", root, "--exclude=./dev/*", "."]
    run_logged(tar, what="packing Debian", log=log)
    shutil.rmtree(root)
