"""The operator as a process on the host, and waiting for what it brings about."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from cluster.kubectl import Kubectl

ROOT = Path(__file__).resolve().parents[3]


class OperatorProcess:
    """`glm5-operator run` as a process on the host."""

    def __init__(self, kubectl: Kubectl, namespace: str, log: Path, port: int, **settings: str) -> None:
        self.port = port
        self.log = log
        variables = {
            "KUBECONFIG": str(kubectl.kubeconfig),
            "GLM5_OPERATOR_NAMESPACE": namespace,
            "GLM5_OPERATOR_IDENTITY": f"test-{port}",
            "GLM5_OPERATOR_METRICS_PORT": str(port),
            "GLM5_OPERATOR_HEALTH_PORT": str(port + 1),
            **settings,
        }
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "glm5_operator", "run"],
                env=os.environ | variables,
                stderr=output,
            )

    def metric(self, name: str, **labels: str) -> float:
        """Sum of the series with this name and these labels."""
        text = httpx.get(f"http://127.0.0.1:{self.port}/metrics").text
        total = 0.0
        for line in text.splitlines():
            series, _, value = line.rpartition(" ")
            base, _, rest = series.partition("{")
            if base == name and all(f'{key}="{wanted}"' in rest for key, wanted in labels.items()):
                total += float(value)
        return total

    @property
    def serves(self) -> bool:
        """Whether its endpoints answer."""
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}/metrics").status_code == 200
        except httpx.TransportError:
            return False

    @property
    def acts(self) -> bool:
        """Whether it holds the Lease and has started its watches."""
        return self.serves and self.metric("glm5_operator_leader") == 1

    def stop(self) -> int:
        """SIGTERM; returns the exit status."""
        self.process.terminate()
        return self.process.wait(20)

    def kill(self) -> None:
        """SIGKILL: no goodbye, the Lease stays held."""
        self.process.kill()
        self.process.wait(20)


def eventually(check: Callable[[], Any], what: str, seconds: float = 90) -> Any:
    """The first true value of `check`. Fails with `what` and the last value or error after some seconds."""
    end = time.monotonic() + seconds
    last: Any = None
    while time.monotonic() < end:
        try:
            last = check()
            if last:
                return last
        except Exception as error:
            last = error
        time.sleep(0.2)
    pytest.fail(f"not within {seconds} s: {what}; last: {last!r}")
