"""Process 1 of the container: forwards SIGTERM at any time, leaves nothing running, says truly how the server ended."""

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from glm5_mla import refusal, serve
from glm5_mla.cli import main
from glm5_mla.refusal import Refusal
from glm5_mla.secret import Secret, read
from glm5_mla.server import cpu_binding


def launcher(tmp_path, server, arguments=()):
    """Start `glm5-mla serve` with a small program in the server's place."""
    program = f"""
        import sys
        from glm5_mla import cli, serve
        serve.SERVER = (sys.executable, "-c", {textwrap.dedent(server)!r})
        sys.exit(cli.main(["serve", "--", *{list(arguments)!r}]))
    """
    environment = {**os.environ, "GLM5_RUN_DIR": str(tmp_path)}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], env=environment, stdout=subprocess.PIPE, text=True
    )


def alive(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.parametrize(
    ("program", "status"), [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 137)]
)
def test_the_server_s_own_failure_is_the_container_s(tmp_path, program, status):
    assert launcher(tmp_path, program).wait(60) == status


def test_a_server_that_ends_by_itself_has_failed(tmp_path):
    assert launcher(tmp_path, "pass").wait(60) == 1


def test_help_is_no_failure(tmp_path):
    assert launcher(tmp_path, "pass", ["--help"]).wait(60) == 0


def test_what_a_rank_refuses_is_the_exit_status_however_the_server_died(tmp_path):
    server = """
        import os
        from glm5_mla.refusal import Refusal
        Refusal("WrongBackend", "Rank 1 says so.").record()
        os.kill(os.getpid(), 9)
    """
    assert launcher(tmp_path, server).wait(60) == refusal.EXIT_STATUS


def test_sigterm_lets_the_server_finish(tmp_path):
    server = """
        import signal, sys, time
        def drain(number, frame):
            time.sleep(0.5)
            print("drained", flush=True)
            sys.exit(0)
        signal.signal(signal.SIGTERM, drain)
        print("ready", flush=True)
        time.sleep(60)
    """
    process = launcher(tmp_path, server)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert process.stdout.read() == "drained\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_is_still_loading_stops_at_once(tmp_path, number):
    process = launcher(tmp_path, "import time; print('loading', flush=True); time.sleep(60)")
    assert process.stdout.readline() == "loading\n"
    begin = time.monotonic()
    process.send_signal(number)
    assert process.wait(60) == 128 + signal.SIGTERM
    assert time.monotonic() - begin < 10


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_before_there_is_a_server_it_stops_too_though_process_1_has_no_default_for_it(tmp_path, number):
    program = """
        import sys, time
        from glm5_mla import cli, serve
        serve.rankfile.wipe = lambda folder: (print("checking", flush=True), time.sleep(60))
        sys.exit(cli.main(["serve"]))
    """
    environment = {**os.environ, "GLM5_RUN_DIR": str(tmp_path)}
    command = [sys.executable, "-c", textwrap.dedent(program)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "checking\n"
    process.send_signal(number)
    assert process.wait(10) == 128 + number


def test_ranks_that_outlive_the_server_are_ended(tmp_path):
    server = """
        import os, subprocess, sys
        rank = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        print(rank.pid, flush=True)
        os._exit(1)
    """
    process = launcher(tmp_path, server)
    rank = int(process.stdout.readline())
    assert process.wait(60) == 1
    deadline = time.monotonic() + 5
    while alive(rank) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(rank)


def test_an_earlier_life_s_files_are_gone_before_the_server_starts(tmp_path):
    (tmp_path / "rank-0").write_text("old")
    server = "import os, sys; sys.exit(os.path.exists(os.environ['GLM5_RUN_DIR'] + '/rank-0') and 5 or 6)"
    assert launcher(tmp_path, server).wait(60) == 6


def test_the_key_is_neither_in_the_server_s_arguments_nor_in_its_environment(tmp_path):
    server = "import sys; print(sys.argv[1:]); sys.exit(4)"
    process = launcher(tmp_path, server, ["--port", "1"])
    assert process.wait(60) == 4
    assert process.stdout.read() == "['--port', '1']\n"


def test_a_refusal_is_one_line_of_json_and_the_first_one_stands(tmp_path, monkeypatch):
    log = tmp_path / "log"
    log.touch()
    monkeypatch.setenv(refusal.TERMINATION_LOG_VARIABLE, str(log))
    assert Refusal("First", "Said first.").end() == 78
    assert Refusal("Second", "Said later.").end() == 78
    assert json.loads(log.read_text()) == {"reason": "First", "message": "Said first."}


def test_a_secret_is_itself_to_those_who_use_it_and_hidden_from_those_who_print_it():
    import pickle

    secret = Secret("hunter2")
    assert secret == "hunter2"
    assert f"Bearer {secret}" == "Bearer hunter2"
    assert "hunter2" not in repr({"api_key": secret})
    assert "hunter2" not in repr(argparse.Namespace(api_key=pickle.loads(pickle.dumps(secret))))


def test_a_key_loses_its_line_s_end_and_nothing_else(tmp_path):
    (tmp_path / "key").write_text("sk-abc\n")
    assert read(str(tmp_path / "key")) == "sk-abc"


@pytest.mark.parametrize("text", ["", "\n", "two words", "zwölf", "a\nb"])
def test_a_key_that_no_header_can_carry_is_refused_without_printing_it(tmp_path, text):
    (tmp_path / "key").write_text(text)
    with pytest.raises(Refusal, match="GLM5_API_KEY_FILE") as caught:
        read(str(tmp_path / "key"))
    assert not text.strip() or text.strip() not in str(caught.value)


def test_a_key_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(Refusal, match=f"{tmp_path}/none.*No such file"):
        read(str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("ranks", "cores", "binding"),
    [(2, {0, 1}, "0|1"), (2, {0, 1, 2, 3, 4}, "0,1|2,3"), (4, {3, 7}, "3|7|3|7"), (1, {5}, "5")],
)
def test_cores_are_dealt_out_to_ranks(ranks, cores, binding):
    assert cpu_binding(ranks, cores) == binding


def test_serve_passes_on_what_stands_behind_the_two_dashes(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setenv("GLM5_RUN_DIR", str(tmp_path))
    monkeypatch.setattr(
        serve, "supervise", lambda command, environment: seen.append((command, environment)) or (0, True)
    )
    assert main(["serve", "--", "--model-path", "/m", "--tp", "2"]) == 0
    command, environment = seen[0]
    assert command[-4:] == ["--model-path", "/m", "--tp", "2"]
    assert environment["GLM5_BACKEND_REQUIRED"] == "1"


def test_every_reason_to_refuse_is_explained():
    root = Path(__file__).parents[3]
    source = "\n".join(path.read_text() for path in (root / "backend/src/glm5_mla").rglob("*.py"))
    reasons = set(re.findall(r'Refusal\(\s*"([A-Z][A-Za-z]+)"', source)) - {"DownloadFailed"}
    explained = set(re.findall(r"`([A-Z][A-Za-z]+)`", (root / "docs/images.md").read_text()))
    assert len(reasons) > 10
    assert reasons <= explained, reasons - explained


def test_the_termination_log_that_the_environment_names_is_the_one_written_and_starts_empty(tmp_path, monkeypatch):
    log = tmp_path / "log"
    log.write_text("of an earlier life")
    monkeypatch.setenv(refusal.TERMINATION_LOG_VARIABLE, str(log))
    server = """
        from glm5_mla.refusal import Refusal
        Refusal("WrongBackend", "Rank 1 says so.").record()
        raise SystemExit(1)
    """
    assert launcher(tmp_path, server).wait(60) == refusal.EXIT_STATUS
    assert json.loads(log.read_text())["reason"] == "WrongBackend"
    assert launcher(tmp_path, "raise SystemExit(3)").wait(60) == 3
    assert log.read_text() == ""
