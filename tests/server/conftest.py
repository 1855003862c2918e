"""The real SGLang with our backend on this machine's CPU, serving the tiny model (make sglang-env)."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from glm5_mla.tiny_model.command import make

# Imports alone take half a minute on two idle cores, and several on busy ones.
READY_SECONDS = 600


@dataclass
class Server:
    """`glm5-mla serve` in a process of its own, with its output in `log`."""

    process: subprocess.Popen
    port: int
    log: Path
    termination_log: Path

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def wait_until_ready(self):
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text()[-2000:]
            try:
                if httpx.get(f"{self.url}/ready").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.5)
        pytest.fail(f"not ready after {READY_SECONDS} s:\n{self.log.read_text()[-2000:]}")

    def refusal(self):
        """The reason and message with which it refused to serve, once it has ended with the status that says so."""
        assert self.process.wait(READY_SECONDS) == 78, self.log.read_text()[-2000:]
        return json.loads(self.termination_log.read_text())


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    directory = tmp_path_factory.mktemp("model")
    make(directory, layers=2)
    return directory


@pytest.fixture(scope="module")
def start(tmp_path_factory, model):
    """Start a server with more arguments and environment; all are ended with the test module."""
    started = []

    def start(*arguments, **environment):
        directory = tmp_path_factory.mktemp("server")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        termination_log = directory / "termination-log"
        termination_log.touch()
        settings = {"GLM5_RUN_DIR": str(directory), "GLM5_TERMINATION_LOG": str(termination_log), **environment}
        common = ["--model-path", str(model), "--attention-backend", "flashinfer", "--kv-cache-dtype", "fp8_e4m3"]
        common += ["--max-total-tokens", "20000", "--port", str(port), "--sleep-on-idle"]
        log = directory / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [Path(sys.executable).with_name("glm5-mla"), "serve", "--", *common, *arguments],
                env={**os.environ, **settings},
                stdout=output,
                stderr=output,
            )
        started.append(process)
        return Server(process, port, log, termination_log)

    yield start
    for process in started:
        process.send_signal(signal.SIGTERM)
    for process in started:
        process.wait(60)
