"""Calls of kubectl with one kubeconfig: what the cluster, the demo and the tests use to talk to an API server."""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .progress import Failure


@dataclass(frozen=True)
class Kubectl:
    """A kubectl program and the kubeconfig that it uses; without one, that of the caller's environment."""

    program: str
    kubeconfig: Path | None = None

    @property
    def environment(self) -> dict[str, str]:
        """The environment for other programs that are to talk to the same cluster, such as helm."""
        more = {"KUBECONFIG": str(self.kubeconfig)} if self.kubeconfig else {}
        return {**os.environ, **more, "PATH": f"{Path(self.program).parent}:{os.environ['PATH']}"}

    def try_run(
        self, *arguments: str, text: str | None = None, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl, whatever comes of it; `text` is its standard input. Raises Failure after `timeout` seconds."""
        command = [self.program, *arguments]
        try:
            return subprocess.run(
                command, input=text, capture_output=True, text=True, env=self.environment, timeout=timeout
            )
        except subprocess.TimeoutExpired:
            raise Failure(f"kubectl {' '.join(arguments)}: no end after {timeout:.0f} s.") from None

    def run(self, *arguments: str, text: str | None = None, timeout: float = 60) -> str:
        """Run kubectl and return its standard output. Raises Failure with its words when it fails."""
        done = self.try_run(*arguments, text=text, timeout=timeout)
        if done.returncode:
            raise Failure(f"kubectl {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def apply(self, objects: list[dict[str, Any]] | str) -> None:
        """Apply objects, given as such or as YAML, with the strict validation that kubectl asks for by default."""
        as_list = {"apiVersion": "v1", "kind": "List", "items": objects}
        self.run("apply", "-f", "-", text=objects if isinstance(objects, str) else json.dumps(as_list))

    def get(self, *arguments: str) -> dict[str, Any]:
        """`kubectl get ... -o json` as a value. Raises Failure when it is not there."""
        value: dict[str, Any] = json.loads(self.run("get", *arguments, "-o", "json"))
        return value

    def find(self, *arguments: str) -> dict[str, Any] | None:
        """Like `get`, but None when it is not there."""
        text = self.run("get", *arguments, "--ignore-not-found", "-o", "json")
        return json.loads(text) if text else None
