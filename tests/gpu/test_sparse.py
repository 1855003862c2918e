"""GLM-5's own sparse attention (SGLang's backend `dsa`) on a card: served, verified and timed by this package.

python -m pytest tests/gpu/test_sparse.py -m gpu
"""

import time

import pytest

torch = pytest.importorskip("torch")

from glm5_mla.bench.served import WAYS, Server, prompts, write_model  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA card")]

LAYERS = 4
ARGUMENTS = ["--load-format", "dummy", "--max-total-tokens", "60032", "--context-length", "16000"]
ARGUMENTS += ["--chunked-prefill-size", "8192", "--mem-fraction-static", "0.8", "--disable-prefill-cuda-graph"]
ARGUMENTS += ["--cuda-graph-bs-decode", "1", "8"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    work = tmp_path_factory.mktemp("sparse")
    way = WAYS["sparse"]
    server = Server(way, write_model(work, way, LAYERS), work, 21400, ARGUMENTS)
    try:
        server.wait(time.time() + 240)
        yield server
    finally:
        server.stop()


def test_the_rank_reports_sglangs_sparse_backend_and_no_cast(server):
    info = server.figures().info
    assert (info.kernel, info.kv_cast, info.verified) == ("sglang-dsa", "Never", True)


@pytest.mark.parametrize(("requests", "context"), [(1, 500), (1, 9_000), (8, 1_000)])
def test_exported_tokens_and_times_are_those_of_the_requests(server, requests, context):
    before = server.figures()
    reply = server.generate(prompts(requests, context), 40)
    time.sleep(0.3)
    after = server.figures()
    assert after.decode_tokens - before.decode_tokens == reply.output_tokens - requests == 39 * requests
    step, attention, cast = (
        after.histograms[name].sum_s - before.histograms[name].sum_s for name in ("step", "attention", "cast")
    )
    assert 0 < attention < step
    assert cast == 0


def test_decode_steps_run_in_graphs(server):
    before = server.figures()
    server.generate(prompts(1, 500), 40)
    time.sleep(0.3)
    after = server.figures()
    assert after.graph_steps - before.graph_steps >= 38
    assert after.eager_steps == before.eager_steps


def test_a_cached_prefix_is_reused(server):
    server.generate(prompts(1, 3000), 4)
    assert server.generate(prompts(1, 3100), 4).cached_tokens >= 2944  # whole pages of 64
