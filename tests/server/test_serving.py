"""The real server answers as clients use it, keeps its key to itself, and finishes what it began when told to stop."""

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

import httpx
import openai
import pytest

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(900)]
API_KEY = "sk-only-for-this-test"


@pytest.fixture(scope="module")
def server(start, tmp_path_factory):
    key = tmp_path_factory.mktemp("key") / "key"
    key.write_text(API_KEY + "\n")
    server = start("--served-model-name", "tiny", GLM5_API_KEY_FILE=str(key))
    server.wait_until_ready()
    return server


@pytest.fixture
def client(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=API_KEY, max_retries=0)


def test_a_chat_is_answered_with_as_many_tokens_as_asked_for(client):
    answer = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "Grüß Gott, 世界!"}], max_tokens=24, temperature=0
    )
    assert answer.usage.completion_tokens == 24
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.content.isprintable()
    assert len(answer.choices[0].message.content) == 24


def test_a_stream_gives_the_same_text_piece_by_piece(client):
    request = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 24, "temperature": 0}
    whole = client.chat.completions.create(**request).choices[0].message.content
    pieces = [piece.choices[0].delta.content or "" for piece in client.chat.completions.create(**request, stream=True)]
    assert "".join(pieces) == whole
    assert sum(1 for piece in pieces if piece) > 12


def test_ignore_eos_goes_on_to_the_last_token(client):
    answer = client.completions.create(
        model="tiny", prompt="abc", max_tokens=40, temperature=1.5, extra_body={"ignore_eos": True}
    )
    assert answer.usage.completion_tokens == 40


def test_without_the_key_nothing_is_answered_but_probes(server):
    assert httpx.get(f"{server.url}/v1/models").status_code == 401
    assert httpx.get(f"{server.url}/v1/models", headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert httpx.get(f"{server.url}/ready").status_code == 200


def test_the_key_is_in_no_log_no_argument_and_no_environment(server):
    assert API_KEY not in server.log.read_text()
    members = _members(_child(server.process.pid))
    assert len(members) >= 3  # SGLang's main process, a scheduler, the detokenizer
    for pid in members:
        for name in ("cmdline", "environ"):
            with open(f"/proc/{pid}/{name}", "rb") as file:
                assert API_KEY.encode() not in file.read(), f"{name} of {pid}"


def test_sigterm_ends_it_after_the_running_answer_and_leaves_nothing(server, client):
    session = _child(server.process.pid)
    logged = server.log.stat().st_size
    answers = []

    def generate():
        answers.append(
            client.completions.create(
                model="tiny", prompt="long", max_tokens=600, temperature=0, extra_body={"ignore_eos": True}, timeout=300
            )
        )

    running = threading.Thread(target=generate)
    running.start()
    deadline = time.monotonic() + 60
    while b"Decode batch" not in server.log.read_bytes()[logged:]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    server.process.send_signal(signal.SIGTERM)
    ready = 200
    while ready == 200 and running.is_alive():
        ready = httpx.get(f"{server.url}/ready").status_code
    assert ready == 503
    running.join()
    assert answers[0].usage.completion_tokens == 600
    assert server.process.wait(120) == 0
    deadline = time.monotonic() + 10
    while _members(session) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert _members(session) == []


@pytest.mark.parametrize(
    ("arguments", "reason", "word"),
    [
        (["--no-such-argument"], "BadArgument", "--no-such-argument"),
        (["--attention-backend", "torch_native"], "WrongAttentionBackend", "torch_native"),
    ],
)
def test_it_refuses_to_serve_and_says_why(start, arguments, reason, word):
    refusal = start(*arguments).refusal()
    assert refusal["reason"] == reason
    assert word in refusal["message"]


def test_without_our_plugin_it_refuses_to_serve(start):
    refusal = start(SGLANG_PLUGINS="smg-servicer").refusal()
    assert refusal["reason"] == "BackendNotInPlace"
    assert "SGLANG_PLUGINS" in refusal["message"]


def _child(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return int(file.read().split()[0])


def _members(session):
    """The processes that run in the session that the launcher made for SGLang."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            if state != "Z" and os.getsid(int(pid)) == session:
                found.append(int(pid))
    return found
