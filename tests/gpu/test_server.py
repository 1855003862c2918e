"""Real servers on a card: the modes against one another by the tokens of a model with real weights, and speculation.

    python -m pytest tests/gpu/test_server.py -m gpu

All servers start side by side on one GPU; a few GiB are enough.
"""

import json
import os
import time

import pytest

torch = pytest.importorskip("torch")

from glm5_mla.bench import mixed  # noqa: E402
from glm5_mla.bench.served import PORT_STEP, SHAPE, WAYS, Server, Way, prompts  # noqa: E402
from glm5_mla.tiny_model.command import make  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA card")]

VOCABULARY = 250
PORT = 21000
MIXED_SECONDS = float(os.environ.get("GLM5_MIXED_SECONDS", "60"))
COMMON = ["--max-total-tokens", "60000", "--context-length", "16000", "--chunked-prefill-size", "2048"]
COMMON += ["--mem-fraction-static", "0.8", "--cuda-graph-max-bs-decode", "8", "--disable-prefill-cuda-graph"]
# Of log-probabilities: eight steps of this model's BF16 logits, which lie between 8 and 16.
LARGEST_DIFFERENCE = 0.5
MODES = ("never-cuda", "never-flashinfer", "active-rows", "whole-pool")
EAGLE = ["--speculative-algorithm", "EAGLE", "--speculative-num-steps", "3", "--speculative-eagle-topk", "1"]
EAGLE += ["--speculative-num-draft-tokens", "4"]


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    work = tmp_path_factory.mktemp("servers")
    make(work / "tiny", 4)
    nextn = work / "nextn"  # weightless: what is drafted is noise, which is fine for the paths and for counting
    nextn.mkdir()
    shape = {**SHAPE, "num_hidden_layers": 4, "first_k_dense_replace": 4, "num_nextn_predict_layers": 1}
    (nextn / "config.json").write_text(json.dumps(shape))
    drafting = [*COMMON, *EAGLE, "--load-format", "dummy", "--speculative-draft-model-path", str(nextn)]
    wanted = [
        *((WAYS[mode], work / "tiny", COMMON) for mode in MODES),
        (Way("paged", "flashinfer", "Never", "auto", page_size=64), work / "tiny", COMMON),
        (Way("paged-whole-pool", "flashinfer", "WholePool", "flashinfer", page_size=64), work / "tiny", COMMON),
        (Way("eager", "flashinfer", "Never", "auto"), work / "tiny", [*COMMON, "--disable-cuda-graph"]),
        (Way("speculative", "flashinfer", "Never", "auto"), nextn, drafting),
    ]
    started = {
        way.name: Server(way, model, work, PORT + PORT_STEP * i, arguments)
        for i, (way, model, arguments) in enumerate(wanted)
    }
    deadline = time.time() + 420
    failures = {}
    try:
        for name, server in started.items():
            try:
                server.wait(deadline)
            except RuntimeError as error:
                failures[name] = str(error)
        yield started, failures
    finally:
        for server in started.values():
            server.stop()


@pytest.fixture
def server(servers):
    started, failures = servers

    def get(name):
        if name in failures:
            pytest.fail(failures[name])
        return started[name]

    return get


def replies(server):
    """Generate over every path: decode alone and in a batch, chunked prefill, a cached prefix short and long."""
    cases = (("short", 1, 20), ("long", 1, 5000), ("longer", 1, 5040), ("batch", 6, 700))
    return {
        name: server.generate(prompts(requests, tokens, VOCABULARY), 24, likely=5) for name, requests, tokens in cases
    }


@pytest.fixture(scope="module")
def expected(servers):
    started, failures = servers
    found = {}
    for name in ("whole-pool", "paged-whole-pool"):
        if name in failures:
            pytest.fail(failures[name])
        found[name] = replies(started[name])
    return found


def differences(got, wanted):
    """Log-probabilities' differences up to each request's first other token, and there how much less likely it was.

    After that token two sequences have nothing in common.
    """
    found = []
    for name, reference in wanted.items():
        for mine, theirs, top in zip(got[name].output_ids, reference.output_ids, reference.likely, strict=True):
            mine_top = got[name].likely[reference.output_ids.index(theirs)]
            for i, (a, b) in enumerate(zip(mine, theirs, strict=True)):
                if a != b:
                    found.append(top[i][b] - top[i].get(a, float("-inf")))
                    break
                found.append(abs(mine_top[i][a] - top[i][a]))
    return found


def test_casting_the_rows_in_use_gives_the_very_tokens_of_casting_the_pool(server, expected):
    got = replies(server("active-rows"))
    assert {name: reply.output_ids for name, reply in got.items()} == {
        name: reply.output_ids for name, reply in expected["whole-pool"].items()
    }


@pytest.mark.parametrize(
    ("mode", "reference"),
    [
        ("never-cuda", "whole-pool"),
        ("never-flashinfer", "whole-pool"),
        ("eager", "whole-pool"),
        ("paged", "paged-whole-pool"),
    ],
)
def test_reading_rows_as_they_are_gives_the_same_tokens_but_for_ties(server, expected, mode, reference):
    found = differences(replies(server(mode)), expected[reference])
    assert max(found) < LARGEST_DIFFERENCE
    assert sorted(found)[len(found) // 2] < 0.03


@pytest.mark.parametrize("mode", [*MODES, "paged", "paged-whole-pool", "eager", "speculative"])
def test_exported_tokens_are_the_clients_less_one_a_request(server, mode):
    running = server(mode)
    before = running.figures().decode_tokens
    ids = prompts(5, 300, VOCABULARY)
    reply = running.generate(ids, 40)
    time.sleep(0.3)
    assert running.figures().decode_tokens - before == reply.output_tokens - len(ids)


@pytest.mark.parametrize("mode", ["never-cuda", "never-flashinfer"])
def test_nothing_is_cast_when_rows_are_read_as_they_are(server, mode):
    snapshot = server(mode).figures()
    assert snapshot.histograms["step"].count > 0
    assert snapshot.histograms["cast"].sum_s == 0
    assert snapshot.cast_bytes == 0


def test_a_cached_prefix_is_reused_from_an_fp8_pool(server):
    running = server("never-cuda")
    running.generate(prompts(1, 3000, VOCABULARY), 4)
    assert running.generate(prompts(1, 3100, VOCABULARY), 4).cached_tokens >= 3000


def test_speculative_decoding_generates(server):
    assert server("speculative").generate(prompts(3, 200), 50).output_tokens == 150


def test_minutes_of_mixed_requests_leave_no_fault_no_leak_and_no_other_tokens(server):
    running = server("never-cuda")
    found = mixed.run(running, MIXED_SECONDS, clients=12, longest=8000, vocabulary=VOCABULARY)
    print(f"{found.requests} requests, {found.aborted} aborted, {found.cached_tokens} cached tokens")
    assert found.faults == []
    assert found.exported_tokens == found.decode_tokens > 0
    assert found.cached_tokens > 0
    # SGLang ends itself when rows leak and it goes idle.
    assert running.generate(prompts(1, 100, VOCABULARY), 5).output_tokens == 5
    for prompt, tokens in found.samples[:20]:
        got, wanted = (after_its_first_half(server(mode), prompt, tokens) for mode in ("never-cuda", "whole-pool"))
        assert got.cached_tokens == wanted.cached_tokens
        assert max(differences({"it": got}, {"it": wanted})) < LARGEST_DIFFERENCE


def after_its_first_half(server, prompt, tokens):
    """Generate with the first half of the prompt, and nothing else, cached.

    What a prefill computes itself it attends to as it is, what is cached as FP8 rows: so the tokens depend on what is
    cached, in every mode.
    """
    server.post("/flush_cache", {})
    server.generate([prompt[: (len(prompt) + 1) // 2]], 1)
    return server.generate([prompt], tokens, likely=5)
