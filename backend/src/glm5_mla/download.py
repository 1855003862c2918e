"""`glm5-mla download`: fetches a Hugging Face repository into a directory, once.

Runs before the server in the same pod. A download that was cut off resumes, file by file and within a file; a finished
one is not repeated, nor is the hub asked, so that a pod can start again while the hub is away.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .refusal import Refusal

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

MARKER = ".glm5-download.json"
PROGRESS_FILE = "download.json"

LOCK = ".glm5-download.lock"

_PROGRESS_SECONDS = 1.0
_PARALLEL_FILES = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add repository, revision and directory."""
    parser.add_argument("--repo", required=True, help="organisation/name")
    parser.add_argument("--revision", default="main", help="branch, tag or commit")
    parser.add_argument("--out", required=True, type=Path, help="directory that gets the files")
    parser.epilog = "Environment: HF_ENDPOINT, HF_TOKEN; GLM5_RUN_DIR, where progress is told."


def run(args: argparse.Namespace) -> int:
    """Download unless it is there. Returns 0, or 78 with a sentence on standard error and in the termination log."""
    if finished(args.out, args.repo, args.revision):
        print(f"{args.repo}@{args.revision} is in {args.out} already", flush=True)
        return 0
    try:
        commit = download(args.repo, args.revision, args.out, Path(os.environ.get("GLM5_RUN_DIR", "/run/glm5")))
    except Exception as error:
        return Refusal("DownloadFailed", f"{args.repo}@{args.revision}: {explain(error)}").end()
    print(f"{args.repo}@{commit} is complete in {args.out}", flush=True)
    return 0


def finished(out: Path, repo: str, revision: str) -> bool:
    """Whether this repository at this revision was downloaded to its end into `out`."""
    try:
        marker = json.loads((out / MARKER).read_text())
    except (OSError, ValueError):
        return False
    return bool(marker.get("repo") == repo and marker.get("revision") == revision)


def download(repo: str, revision: str, out: Path, run_directory: Path) -> str:
    """Fetch all files and mark the directory as complete. Returns the commit.

    Raises what huggingface_hub raises, and OSError where the disk is full or not writable.
    """
    from huggingface_hub import HfApi

    out.mkdir(parents=True, exist_ok=True)
    with (out / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another pod may fill the same claim: wait, then find it done
        if finished(out, repo, revision):
            return "its commit"
        info = HfApi().model_info(repo, revision=revision, files_metadata=True)
        files = [sibling for sibling in info.siblings or [] if sibling.size is not None]
        ended = threading.Event()
        total, weights = sum(file.size or 0 for file in files), weight_bytes(files)
        teller = threading.Thread(target=_tell, args=(out, total, weights, run_directory, ended), daemon=True)
        teller.start()
        try:
            # The commit, not the branch: should the branch move meanwhile, the files still belong together.
            with ThreadPoolExecutor(_PARALLEL_FILES) as pool:
                for done in [pool.submit(_fetch, repo, str(info.sha), file, out) for file in files]:
                    done.result()
        finally:
            ended.set()
            teller.join()
            (run_directory / PROGRESS_FILE).unlink(missing_ok=True)
        _write(out / MARKER, {"repo": repo, "revision": revision, "commit": info.sha})
        return str(info.sha)


def _fetch(repo: str, commit: str, file: Any, out: Path) -> None:
    """Fetch one file, from where an earlier attempt stopped. huggingface_hub's own download starts a file over."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    target = out / file.rfilename
    if not target.resolve().is_relative_to(out.resolve()):
        raise ValueError(f"the repository names a file outside of itself: {file.rfilename}")
    if target.exists() and target.stat().st_size == file.size:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.{commit[:8]}.part")
    with part.open("ab") as body:
        http_get(
            hf_hub_url(repo, file.rfilename, revision=commit),
            body,
            resume_size=body.tell(),
            headers=build_hf_headers(),
            expected_size=file.size,
        )
    if file.lfs is not None and _sha256(part) != file.lfs.sha256:
        part.unlink()
        raise ValueError(f"{file.rfilename} arrived damaged and is fetched anew at the next start")
    part.replace(target)


def _sha256(path: Path) -> str:
    with path.open("rb") as body:
        return hashlib.file_digest(body, "sha256").hexdigest()


def explain(error: Exception) -> str:
    """What went wrong and what to do about it."""
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalTokenNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    if isinstance(error, GatedRepoError):
        return (
            "the repository is gated: accept its terms on the hub and set spec.model.source.huggingFace.tokenSecretRef"
        )
    if isinstance(error, RevisionNotFoundError):
        return "the hub has no such revision: check spec.model.source.huggingFace.revision"
    if isinstance(error, (RepositoryNotFoundError, LocalTokenNotFoundError)):
        return "the hub has no such repository, or it is private: check repo, or set tokenSecretRef"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return "the cache claim is full: make it larger"
    if isinstance(error, PermissionError):
        return f"the cache claim is not writable: {error}"
    return f"the hub at {endpoint} could not be read ({type(error).__name__}: {error})"


def weight_bytes(files: Iterable[Any]) -> int:
    """Bytes of the weights that SGLang loads; 0 where they are in another format.

    That is the safetensors files at the top: a folder (`original/`) holds the same weights in another form.
    """
    return sum(file.size for file in files if "/" not in file.rfilename and file.rfilename.endswith(".safetensors"))


def _tell(out: Path, total: int, weights: int, run_directory: Path, ended: threading.Event) -> None:
    while not ended.wait(_PROGRESS_SECONDS):
        try:
            _write(run_directory / PROGRESS_FILE, {"done": min(_size(out), total), "total": total, "weights": weights})
        except OSError as error:  # progress is a comfort: the download goes on
            print(f"glm5-mla download: progress not told: {error}", file=sys.stderr)
            return


def _size(directory: Path) -> int:
    """Bytes of all files below a directory, those being written included."""
    total = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except FileNotFoundError:  # moved into place between listing and looking
                continue
    return total


def _write(path: Path, value: dict[str, object]) -> None:
    """Replace a file at once: a reader sees the old one or the new one."""
    draft = path.with_name(path.name + ".tmp")
    draft.write_text(json.dumps(value))
    draft.replace(path)
