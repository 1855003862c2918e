"""Real SGLang servers on a CPU, one a mode: the same tokens, exact counts, figures that tell the modes apart."""

import json
import threading
import time

import pytest

pytest.importorskip("torch")

from glm5_mla.bench import mixed
from glm5_mla.bench.served import Server, Way, prompts
from glm5_mla.tiny_model.command import make

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(900)]

VOCABULARY = 250
POOL = 30_000
COMMON = ["--device", "cpu", "--max-total-tokens", str(POOL), "--chunked-prefill-size", "512"]
MODES = {mode: Way(mode, "flashinfer", mode, "auto") for mode in ("Never", "ActiveRows", "WholePool")}


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    work = tmp_path_factory.mktemp("servers")
    make(work / "tiny", 2)
    return work


@pytest.fixture(scope="module")
def servers(work):
    started = {
        mode: Server(way, work / "tiny", work, 37100 + 400 * i, COMMON) for i, (mode, way) in enumerate(MODES.items())
    }
    try:
        deadline = time.time() + 600
        for server in started.values():
            server.wait(deadline)
        yield started
    finally:
        for server in started.values():
            server.stop()


def settled(server):
    """Give the figures when the rank has gone idle, and so has written its last steps."""
    for _ in range(100):
        time.sleep(0.1)
        figures = server.figures()
        if figures.running_requests == 0:
            return figures
    raise AssertionError("the server did not go idle")


@pytest.mark.parametrize(
    ("requests", "tokens"),
    [
        pytest.param(1, 20, id="decode"),
        pytest.param(1, 1300, id="chunked prefill onto a cached prefix"),
        pytest.param(4, 300, id="a batch"),
    ],
)
def test_all_modes_give_the_same_tokens(servers, requests, tokens):
    replies = [server.generate(prompts(requests, tokens, VOCABULARY), 16).output_ids for server in servers.values()]
    assert replies[0] == replies[1] == replies[2]


@pytest.mark.parametrize("mode", MODES)
def test_exported_tokens_are_the_clients_less_one_a_request(servers, mode):
    server = servers[mode]
    before = settled(server).decode_tokens
    reply = server.generate(prompts(3, 50, VOCABULARY), 12)
    assert settled(server).decode_tokens - before == reply.output_tokens - 3 == 33


def test_tokens_of_an_aborted_request_are_counted_exactly(servers):
    server = servers["Never"]
    before = settled(server).decode_tokens
    body = {
        "input_ids": prompts(1, 30, VOCABULARY)[0],
        "rid": "to-be-aborted",
        "sampling_params": {"max_new_tokens": 4000, "ignore_eos": True, "temperature": 0},
    }
    replies = []
    request = threading.Thread(target=lambda: replies.append(json.loads(server.post("/generate", body))))
    request.start()
    for _ in range(600):
        time.sleep(0.05)
        if server.figures().decode_tokens > before + 5:
            break
    server.post("/abort_request", {"rid": "to-be-aborted"})
    request.join(60)
    meta = replies[0]["meta_info"]
    assert meta["finish_reason"]["type"] == "abort"
    assert 5 < meta["completion_tokens"] < 4000
    assert settled(server).decode_tokens - before == meta["completion_tokens"] - 1


def test_mixed_requests_with_aborts_and_shared_prefixes_are_counted_exactly(servers):
    found = mixed.run(servers["Never"], seconds=8, clients=4, longest=300, vocabulary=VOCABULARY)
    assert found.faults == []
    assert found.requests >= 4
    assert found.readings > 10
    assert found.exported_tokens == found.decode_tokens > 0


def test_a_cached_prefix_is_reused_from_an_fp8_pool(servers):
    server = servers["Never"]
    server.generate(prompts(1, 400, VOCABULARY), 2)
    assert server.generate(prompts(1, 450, VOCABULARY), 2).cached_tokens >= 400


def test_what_a_mode_casts_shows_in_its_figures(servers):
    shares = {}
    for mode, server in servers.items():
        before = settled(server)
        server.generate(prompts(1, 40, VOCABULARY), 20)
        after = settled(server)
        steps = after.histograms["step"].count - before.histograms["step"].count
        written = (after.cast_bytes - before.cast_bytes) / steps
        spent = {name: after.histograms[name].sum_s - before.histograms[name].sum_s for name in ("step", "cast")}
        shares[mode] = spent["cast"] / spent["step"]
        if mode == "WholePool":
            rows = server.figures().cast_bytes // server.figures().histograms["step"].count // (2 * 2 * 576)
            assert POOL <= rows <= POOL + 64
        elif mode == "ActiveRows":
            assert 40 * 2 * 2 * 576 <= written <= 61 * 2 * 2 * 576
    assert shares["Never"] == 0
    assert 0 < shares["ActiveRows"] < shares["WholePool"]
    assert shares["WholePool"] > 0.5


def test_every_rank_reports_what_it_serves_with(servers):
    for mode, server in servers.items():
        info = server.figures().info
        assert (info.kv_cast, info.kernel, info.verified, info.sglang) == (mode, "reference", True, "0.5.23")


def test_the_pool_is_sized_with_the_buffer_of_cast_rows_where_there_is_one(servers):
    said = "A row of the KV pool takes 1152 bytes, and 1152 more in the buffer of cast rows."
    assert {mode: said in server.log.read_text() for mode, server in servers.items()} == {
        "Never": False,
        "ActiveRows": True,
        "WholePool": False,
    }


def test_casting_a_pool_that_needs_no_cast_is_refused(work, tmp_path, monkeypatch):
    log = tmp_path / "termination-log"
    log.touch()
    monkeypatch.setenv("GLM5_TERMINATION_LOG", str(log))
    arguments = [*COMMON, "--kv-cache-dtype", "bfloat16"]
    server = Server(MODES["ActiveRows"]._replace(name="refused"), work / "tiny", work, 38500, arguments)
    try:
        with pytest.raises(RuntimeError, match="did not start"):
            server.wait(time.time() + 600)
    finally:
        server.stop()
    refused = json.loads(log.read_text())
    assert refused["reason"] == "NothingToCast"
    assert "use Never" in refused["message"]
