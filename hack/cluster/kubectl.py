"""Calls of kubectl as this cluster's administrator."""

import json
import subprocess
from pathlib import Path
from typing import Any

from .layout import Layout
from .progress import Failure


def run(layout: Layout, binaries: Path, *arguments: str, text: str | None = None, check: bool = True) -> str:
    """kubectl's standard output. Raises Failure with its error when `check` and it fails."""
    command = [f"{binaries}/kubectl", f"--kubeconfig={layout.kubeconfig}", "--request-timeout=20s", *arguments]
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    if done.returncode and check:
        raise Failure(f"kubectl {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def apply(layout: Layout, binaries: Path, objects: list[dict[str, Any]] | str) -> None:
    """Apply objects, given as such or as YAML."""
    text = objects if isinstance(objects, str) else json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    run(layout, binaries, "apply", "-f", "-", text=text)
