"""`glm5-mla top` against a real exporter, and what it says when there is nothing to read."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from glm5_mla.exporter.server import ExporterServer, Settings
from glm5_mla.timing.rankfile import BackendInfo, RankWriter, StepRecord
from glm5_mla.top.sources import ExporterSource, KubernetesSource, SourceError

PROGRAM = Path(sys.executable).with_name("glm5-mla")


@pytest.fixture
def exporter(tmp_path):
    server = ExporterServer(Settings(str(tmp_path), 0, "glm5", 2))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def rank(tmp_path):
    writer = RankWriter(tmp_path, 0, 2, BackendInfo("Never", "reference", "0.1.0", "0.5.23"))
    for _ in range(20):
        writer.record(StepRecord(1, 8_000_000, 9_000_000, 0, 2_000_000, 0, 3, 300, False))
        writer.add_tokens(3)
    yield writer
    writer.close()


def top(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [PROGRAM, "top", *arguments], capture_output=True, text=True, timeout=20, env={**os.environ, **environment}
    )


def test_one_look_prints_the_exporter_s_figures_without_colours_into_a_pipe(exporter, rank):
    result = top("--exporter", exporter, "--once")
    assert result.returncode == 0
    assert "step 8.00 ms" in result.stdout
    assert "6.00 tok/s" in result.stdout
    assert "\x1b" not in result.stdout


def test_json_is_one_object_a_look_with_the_ranks_in_it(exporter, rank):
    result = top("--exporter", exporter, "--once", "--json")
    (pod,) = json.loads(result.stdout)["pods"]
    assert pod["backend"]["kvCast"] == "Never"
    assert [entry["alive"] for entry in pod["ranks"]] == [True, False]
    assert pod["ranks"][0]["attention"] == pytest.approx(0.002)


def test_before_the_server_starts_it_says_that_it_is_not_up(exporter):
    assert "not up" in top("--exporter", exporter, "--once").stdout


@pytest.mark.parametrize("option", ["--exporter", "--prometheus"])
def test_an_address_where_nothing_listens_is_named_in_one_line(option):
    result = top(option, "http://127.0.0.1:9", "--once")
    assert result.returncode == 1
    assert "http://127.0.0.1:9" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_an_answer_that_is_not_prometheus_is_called_so(exporter):
    assert "404" in top("--prometheus", exporter, "--once").stderr


def test_without_kubectl_it_says_which_ways_are_left():
    result = top("--once", PATH="/nonexistent")
    assert result.returncode == 1
    assert "kubectl is not on the PATH: install it, or use --prometheus URL" in result.stderr


def test_kubectl_s_own_error_is_passed_on(tmp_path):
    with pytest.raises(SourceError, match=r"kubectl: .*(refused|connect|127\.0\.0\.1)"):
        KubernetesSource(None, None, kubectl=_kubectl(tmp_path)).read()


def _kubectl(tmp_path: Path) -> str:
    """A real program that fails the way kubectl does when no API server listens."""
    program = tmp_path / "kubectl"
    program.write_text("#!/bin/sh\necho 'The connection to the server 127.0.0.1:1 was refused' >&2\nexit 1\n")
    program.chmod(0o755)
    return str(program)


def test_a_page_that_is_no_exporter_s_is_refused(exporter):
    with pytest.raises(SourceError, match="404"):
        ExporterSource(exporter + "/elsewhere").read()


@pytest.mark.parametrize("interval", ["0", "nan", "1e9"])
def test_a_senseless_interval_is_refused(interval):
    result = top("--interval", interval, "--exporter", "http://127.0.0.1:9")
    assert result.returncode == 2
    assert "--interval must be" in result.stderr
