"""Builds one image after another with buildah; what is built of the same inputs already is used again."""

import contextlib
import fcntl
import hashlib
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from cluster import packages
from cluster.progress import Failure, run_logged, say

from .debian import root_file_system
from .recipes import REPOSITORY, Recipe, recipes, setting

CERTIFICATES = "/etc/ssl/certs"
# Where pip, run as root in a build, keeps its downloads: the root user has the same home in the images as here.
PIP_DOWNLOADS = f"{pwd.getpwuid(0).pw_dir}/.cache/pip"
# As in .dockerignore: a build makes its own.
FILES_THAT_DO_NOT_COUNT = ("__pycache__", ".egg-info", ".so")


class Store:
    """Where images lie between runs: buildah's storage, the archives and pip's downloads, all below `cache`."""

    def __init__(self, cache: Path) -> None:
        self.archives = cache / "images"
        self.log = cache / "log"
        self.pip = cache / "pip"
        self._storage = cache / "buildah"
        # What is mounted now: not in the cache, as it must not outlive a reboot.
        self._run = Path("/run/glm5-buildah", hashlib.sha256(bytes(cache.absolute())).hexdigest()[:8])
        for directory in (self.archives, self.log, self.pip, self._storage):
            directory.mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other builds out of this store: they wait here, and then find what this one built.

        What a killed build left is cleared first. Afterwards nothing of the store is mounted: buildah itself leaves a
        mount behind.
        """
        with (self.archives / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say("waiting for another build of images to end")
                fcntl.flock(lock, fcntl.LOCK_EX)
            self._clear_scratch()
            try:
                yield
            finally:
                # It fails where nothing was built: then there is no such mount.
                subprocess.run(["umount", self._storage / "overlay"], stderr=subprocess.DEVNULL, check=False)

    def scratch(self) -> tempfile.TemporaryDirectory[str]:
        """Return a directory for one build, on the archives' file system."""
        return tempfile.TemporaryDirectory(dir=self.archives, prefix=SCRATCH)

    def _clear_scratch(self) -> None:
        """Remove earlier builds' scratch directories, with what debootstrap mounted in them."""
        below = f"{self.archives}/{SCRATCH}"
        mounted = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in sorted((point for point in mounted if point.startswith(below)), reverse=True):
            if subprocess.run(["umount", mount], check=False).returncode:
                raise Failure(f"An earlier, killed build left {mount} mounted: unmount it, then run this again.")
        for directory in self.archives.glob(f"{SCRATCH}*"):
            shutil.rmtree(directory)

    def buildah(self, *arguments: str | Path) -> list[str | Path]:
        """Return a buildah command line that works in this store."""
        roots = ("--root", self._storage, "--runroot", self._run, "--storage-driver", "overlay")
        return ["buildah", *roots, *arguments]

    def has(self, recipe: Recipe, key: str) -> bool:
        """Return whether the image of this key is here: its archive, or, of one to build on, itself."""
        if recipe.archived:
            return self.archive(recipe, key).exists()
        inspect = self.buildah("inspect", "--type", "image", "--format", "{{.OCIv1.Config.Labels}}", recipe.image)
        found = subprocess.run(inspect, env=environment(), capture_output=True, text=True, check=False)
        return f"{KEY_LABEL}:{key}" in found.stdout

    def archive(self, recipe: Recipe, key: str) -> Path:
        """Return where the archive of the image of this key is, or will be."""
        return self.archives / f"{recipe.name}-{key}.tar"


KEY_LABEL = "dev.glm5.inputs"
SCRATCH = "building-"
# Of each image, beside the one being built: another checkout may be about to load its own.
KEPT_ARCHIVES = 2


def environment() -> dict[str, str]:
    """Return the environment that buildah needs: no containers within this build, so it works inside one."""
    return {**os.environ, "BUILDAH_ISOLATION": "chroot"}


def key(recipe: Recipe, base_key: str) -> str:
    """Return 16 hexadecimal digits that change when an input of the image or of its base does."""
    digest = hashlib.sha256(f"{recipe.image} {base_key} {sorted(recipe.arguments.items())}".encode())
    for path in files(recipe.inputs):
        digest.update(f"\0{path.relative_to(REPOSITORY)}\0{path.stat().st_mode & 0o111:o}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def files(inputs: Iterable[str]) -> list[Path]:
    """Return every file of `inputs`, in an order that doesn't depend on the file system."""
    found = [REPOSITORY / name for name in inputs]
    listed = {path for root in found for path in ([root] if root.is_file() else root.rglob("*")) if path.is_file()}
    return sorted(path for path in listed if not any(part.endswith(FILES_THAT_DO_NOT_COUNT) for part in path.parts))


def ensure(names: Iterable[str], environ: Mapping[str, str] = os.environ) -> dict[str, Path]:
    """Build the named images, and what they stand on, unless that is done; return the archive of each one that has one.

    `environ` holds the settings that `recipes` reads.
    Raises Failure with what to do, or with the last lines of a build's log.
    """
    if os.geteuid() != 0:
        raise Failure("Building images needs root: a root file system is made, with its owners. Run this as root.")
    wanted = list(names)
    known = recipes(environ)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise Failure(f"No image is called {', '.join(unknown)}; there are {', '.join(known)}.")
    store = Store(Path(setting("CACHE", environ)))
    with store.locked():
        return _ensure(wanted, known, store, setting("DEBIAN_RELEASE", environ))


def _ensure(wanted: list[str], known: Mapping[str, Recipe], store: Store, release: str) -> dict[str, Path]:
    packages.ensure({"buildah": "buildah"}, store.log / "packages.log")
    keys: dict[str, str] = {}
    chosen = with_bases(wanted, known)
    for recipe in known.values():
        keys[recipe.name] = key(recipe, keys[recipe.base] if recipe.base else release)
        if recipe.name in chosen:
            _build_one(recipe, keys[recipe.name], known, store, release)
    return {name: store.archive(known[name], keys[name]) for name in wanted if known[name].archived}


def with_bases(wanted: Iterable[str], known: Mapping[str, Recipe]) -> set[str]:
    """Return the names of the wanted recipes and of all that they stand on."""
    chosen = set()
    for name in wanted:
        step: str | None = name
        while step is not None:
            chosen.add(step)
            step = known[step].base
    return chosen


def _build_one(recipe: Recipe, inputs_key: str, known: Mapping[str, Recipe], store: Store, release: str) -> None:
    if store.has(recipe, inputs_key):
        say(f"image {recipe.image}: as it was")
        return
    begin = time.monotonic()
    say(f"building image {recipe.image}")
    log = store.log / f"image-{recipe.name}.log"
    with store.scratch() as scratch:
        context = REPOSITORY
        if recipe.base is None:
            context = Path(scratch)
            root_file_system(release, context, log)
        arguments: list[str | Path] = ["--file", REPOSITORY / recipe.dockerfile, "--tag", recipe.image]
        arguments += ["--label", f"{KEY_LABEL}={inputs_key}", "--volume", f"{store.pip}:{PIP_DOWNLOADS}"]
        if recipe.base is not None:
            arguments += ["--build-arg", f"BASE={known[recipe.base].image}"]
        for name, value in recipe.arguments.items():
            arguments += ["--build-arg", f"{name}={value}"]
        # The host's certificates: a build behind a company's proxy trusts what the host does.
        if Path(CERTIFICATES).is_dir():
            arguments += ["--volume", f"{CERTIFICATES}:{CERTIFICATES}:ro"]
        command = store.buildah("build", "--pull-never", *arguments, context)
        run_logged(command, what=f"building {recipe.image}", log=log, env=environment())
        if recipe.archived:
            _archive(recipe, inputs_key, store, Path(scratch), log)
    run_logged(store.buildah("rmi", "--prune"), what="dropping old images", log=log, env=environment())
    say(f"image {recipe.image}: built in {time.monotonic() - begin:.0f} s")


def _archive(recipe: Recipe, inputs_key: str, store: Store, scratch: Path, log: Path) -> None:
    """Save the image as a docker archive (what containerd, docker and podman load); drop all but the newest."""
    half = scratch / "archive.tar"
    push = store.buildah("push", "--quiet", recipe.image, f"docker-archive:{half}:{recipe.image}")
    run_logged(push, what=f"saving {recipe.image}", log=log, env=environment())
    older = store.archives.glob(f"{recipe.name}-{'[0-9a-f]' * 16}.tar")
    for old in sorted(older, key=lambda path: path.stat().st_mtime)[:-KEPT_ARCHIVES]:
        old.unlink()
    shutil.move(half, store.archive(recipe, inputs_key))
