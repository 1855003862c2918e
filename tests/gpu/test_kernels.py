"""The decode kernels against float64, on a card: `pytest tests/gpu -m gpu` (build the library first: make kernel)."""

import math
import os
import subprocess
import sys
from itertools import pairwise

import pytest

torch = pytest.importorskip("torch")

from glm5_mla import kernels  # noqa: E402
from glm5_mla.kernels.cuda import CudaMlaDecode, Cut  # noqa: E402
from glm5_mla.kernels.native.library import CudaKernelError  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA card")]
SCALE = 1 / math.sqrt(256)
LIMIT = 3e-3
RAGGED = [1, 17, 63, 64, 65, 1000, 5000, 0, 3, 128, 129, 40000, 7]


def skip_without(kernel, heads):
    """Skip a test where `kernel` can't run, with the reason."""
    reason = kernels.unavailable(kernel, torch.device("cuda"), heads)
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(params=["cuda", "triton"])
def make(request):
    def made(heads):
        skip_without(request.param, heads)
        return kernels.make(request.param, torch.device("cuda"), heads)

    return made


def pool(rows=100_000, scale=0.7, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    return (torch.randn((rows, 1, 576), device="cuda", generator=generator) * scale).to(torch.float8_e4m3fn)


def indptr(lengths):
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device="cuda")


def batch(lengths, queries, heads, q_scale=1.0, rows=100_000, seed=1):
    """Random queries (as views with strides of their own) and row lists."""
    generator = torch.Generator("cuda").manual_seed(seed)
    indices = torch.randint(rows, (sum(lengths),), device="cuda", generator=generator, dtype=torch.int32)
    q = (torch.randn((sum(queries), heads, 768), device="cuda", generator=generator) * q_scale).bfloat16()
    return q[..., :512], q[..., 704:], indptr(queries), indptr(lengths), indices


def wanted(q_nope, q_rope, pool, qo_indptr, kv_indptr, indices, kv_scale=1.0):
    q, out = torch.cat([q_nope, q_rope], -1).double(), torch.zeros(q_nope.shape, dtype=torch.float64, device="cuda")
    lse = torch.full(q_nope.shape[:2], -math.inf, dtype=torch.float64, device="cuda")
    queries, rows = qo_indptr.tolist(), kv_indptr.tolist()
    for b in range(len(rows) - 1):
        keys = pool[indices[rows[b] : rows[b + 1]].long()].view(-1, 576).double() * kv_scale
        for i in range(queries[b], queries[b + 1]):
            seen = keys[: len(keys) - (queries[b + 1] - 1 - i)]
            if len(seen):
                scores = q[i] @ seen.T * SCALE
                out[i] = scores.softmax(-1) @ seen[:, :512]
                lse[i] = scores.logsumexp(-1)
    return out, lse


def error(got, want):
    size, difference = want.norm(dim=-1), (got.double() - want).norm(dim=-1)
    return float(torch.where(size == 0, difference, difference / size.clamp_min(1e-30)).max())


def run(kernel, case, rows, max_q_len=1, **more):
    out = torch.full(case[0].shape, math.nan, dtype=torch.bfloat16, device="cuda")
    kernel(*case[:2], rows, *case[2:], SCALE, max_q_len=max_q_len, out=out, **more)
    return out


@pytest.mark.parametrize(
    "lengths",
    [
        *([1], [1024], [8192], [90_000], [0, 5], [2000, 0, 0, 31], [4096] * 64, RAGGED, RAGGED[::-1]),
        [30_000, *(300,) * 20, 30_000],
        [i * 7 % 90 for i in range(300)],
    ],
    ids=[
        *("1", "1k", "8k", "90k", "0,5", "with-empty", "64x4k", "ragged", "ragged-backwards"),
        *("long-short-long", "300-short"),
    ],
)
def test_matches_float64_for_any_lengths(make, lengths):
    case, rows = batch(lengths, [1] * len(lengths), 8), pool()
    lse = torch.empty(case[0].shape[:2], device="cuda")
    out = run(make(8), case, rows, lse=lse)
    want, want_lse = wanted(*case[:2], rows, *case[2:])
    assert error(out, want) < LIMIT
    assert torch.allclose(lse.double(), want_lse, atol=1e-3)


@pytest.mark.parametrize("heads", [8, 16, 32, 64, 128])
def test_matches_float64_for_any_number_of_heads(make, heads):
    case, rows = batch([5000, 33, 700], [1] * 3, heads), pool()
    assert error(run(make(heads), case, rows), wanted(*case[:2], rows, *case[2:])[0]) < LIMIT


@pytest.mark.parametrize("queries", [[2, 2, 2], [4, 4, 4], [8, 8, 8], [1, 8, 3]])
def test_each_query_token_sees_the_rows_up_to_its_own(make, queries):
    case, rows = batch([5000, 33, 700], queries, 8), pool()
    lse = torch.full(case[0].shape[:2], math.nan, device="cuda")
    out = run(make(8), case, rows, max_q_len=max(queries), lse=lse)
    want, want_lse = wanted(*case[:2], rows, *case[2:])
    assert error(out, want) < LIMIT
    assert (lse - want_lse).abs().max() < 1e-3


@pytest.mark.parametrize(
    ("lengths", "queries"),
    [([20_000, 33, 9000], [1, 8, 3]), ([60_000], [8])],  # the second is shared by all thread blocks
)
def test_many_heads_and_query_tokens_take_several_passes_over_long_requests(make, lengths, queries):
    case, rows = batch(lengths, queries, 128), pool()
    out = run(make(128), case, rows, max_q_len=8)
    assert error(out, wanted(*case[:2], rows, *case[2:])[0]) < LIMIT


def test_calls_of_different_query_lengths_and_batches_share_one_kernel(make):
    kernel, rows = make(8), pool()
    for queries, count in ((1, 1), (4, 3), (1, 9), (2, 3), (8, 2), (1, 1), (4, 1)):
        case = batch([9000] * count, [queries] * count, 8)
        assert error(run(kernel, case, rows, max_q_len=queries), wanted(*case[:2], rows, *case[2:])[0]) < LIMIT
        if kernel.name == "cuda":  # no piece of a partial result is left for a later call
            assert (kernel._workspace == 0xFF).all()


@pytest.mark.parametrize("queries", [1, 4])
@pytest.mark.parametrize("ctas", [1, 2, 3, 5, 40])
def test_short_requests_are_cut_for_any_number_of_thread_blocks(ctas, queries):
    skip_without("cuda", 8)
    kernel, rows = CudaMlaDecode(torch.device("cuda"), 8, Cut(ctas=ctas)), pool()
    for lengths in ([1], [31], [40], [0, 13], [5, 0, 90, 33, 200], [200, 1]):
        case = batch(lengths, [queries] * len(lengths), 8)
        out = run(kernel, case, rows, max_q_len=queries)
        assert error(out, wanted(*case[:2], rows, *case[2:])[0]) < LIMIT, lengths
        assert (kernel._workspace == 0xFF).all(), lengths


@pytest.mark.parametrize("queries", [1, 2, 4])
def test_what_rows_outside_the_lists_hold_never_shows(make, queries):
    rows = pool()
    case = batch([1000, 3, 40_000], [queries] * 3, 8)
    clean = run(make(8), case, rows, max_q_len=queries)
    outside = torch.ones(len(rows), dtype=torch.bool, device="cuda")
    outside[case[4].long()] = False
    rows.view(torch.uint8)[outside] = 0x7F  # NaN
    assert torch.equal(run(make(8), case, rows, max_q_len=queries), clean)


@pytest.mark.parametrize("queries", [1, 4])
def test_nan_in_a_row_in_use_shows_in_its_request_alone_and_in_no_later_call(make, queries):
    kernel, rows = make(8), pool()
    case = batch([9000, 100, 20_000], [queries] * 3, 8)
    clean = run(kernel, case, rows, max_q_len=queries)
    spoilt = rows.clone()
    spoilt.view(torch.uint8)[case[4][4000].long()] = 0x7F
    used_by = [bool((case[4][b:e] == case[4][4000]).any()) for b, e in pairwise(case[3].tolist())]
    used_by = [used for used in used_by for _ in range(queries)]
    assert run(kernel, case, spoilt, max_q_len=queries).isnan().all(-1).all(-1).tolist() == used_by
    assert torch.equal(run(kernel, case, rows, max_q_len=queries), clean)


@pytest.mark.parametrize("queries", [1, 4])
@pytest.mark.parametrize(
    ("what", "q_scale", "row_scale"),
    [("large logits", 100.0, 0.7), ("tiny queries", 1e-4, 0.7), ("largest rows", 1.0, 1e4)],
)
def test_stays_accurate_where_values_are_extreme(make, what, q_scale, row_scale, queries):
    rows = pool()
    if row_scale > 1:
        rows = torch.where(rows.float() > 0, 448.0, -448.0).to(torch.float8_e4m3fn)
    case = batch([3000, 10, 20_000], [queries] * 3, 8, q_scale)
    assert error(run(make(8), case, rows, max_q_len=queries), wanted(*case[:2], rows, *case[2:])[0]) < LIMIT


@pytest.mark.parametrize("queries", [1, 4])
def test_zero_rows_give_zero(make, queries):
    rows = torch.zeros((100_000, 1, 576), device="cuda").to(torch.float8_e4m3fn)
    rows.view(torch.uint8)[::2] = 0x80  # -0
    assert not run(make(8), batch([3000], [queries], 8), rows, max_q_len=queries).any()


@pytest.mark.parametrize("queries", [1, 4])
def test_a_far_outweighed_crowd_still_counts(make, queries):
    """One row with a weight 2^20 times that of 90,000 equal others: their sum is 8 % of the output."""
    rows = torch.zeros((100_000, 1, 576), device="cuda")
    rows[:, :, :256] = 1.0
    rows[0, :, 512] = 8.0
    rows = rows.to(torch.float8_e4m3fn)
    q_nope, q_rope = torch.zeros((queries, 8, 512), device="cuda"), torch.zeros((queries, 8, 64), device="cuda")
    q_rope[..., 0] = 20 * math.log(2) / SCALE / 8
    lists = (indptr([queries]), indptr([90_000]), torch.arange(90_000, dtype=torch.int32, device="cuda"))
    case = (q_nope.bfloat16(), q_rope.bfloat16(), *lists)
    assert error(run(make(8), case, rows, max_q_len=queries), wanted(*case[:2], rows, *lists)[0]) < LIMIT


def test_a_pool_scale_applies_to_keys_and_values(make):
    case, rows = batch([3000, 700], [1] * 2, 8), pool()
    assert error(run(make(8), case, rows, kv_scale=0.25), wanted(*case[:2], rows, *case[2:], kv_scale=0.25)[0]) < LIMIT


@pytest.mark.parametrize("queries", [1, 2, 4])
def test_two_runs_give_the_same_bits(make, queries):
    kernel, case, rows = make(8), batch(RAGGED, [queries] * len(RAGGED), 8), pool()
    assert torch.equal(run(kernel, case, rows, max_q_len=queries), run(kernel, case, rows, max_q_len=queries))


def test_a_graph_follows_what_its_tensors_hold_at_replay(make):
    kernel, rows = make(8), pool()
    case = batch([5000, 900, 20], [1] * 3, 8)
    out = torch.empty(case[0].shape, dtype=torch.bfloat16, device="cuda")
    run(kernel, case, rows)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(*case[:2], rows, *case[2:], SCALE, out=out)
    for lengths in ([20, 5000, 900], [1, 1, 1], [0, 5918, 2]):
        case[3].copy_(indptr(lengths))
        graph.replay()
        assert error(out, wanted(*case[:2], rows, *case[2:])[0]) < LIMIT


@pytest.mark.parametrize("spoil", ["dtype", "heads", "length"])
def test_bad_input_is_refused_by_name(make, spoil):
    kernel, case, rows = make(8), batch([100], [1], 8), pool()
    if kernel.name != "cuda":
        pytest.skip("checks of the CUDA kernel's wrapper")
    if spoil == "dtype":
        with pytest.raises(ValueError, match="pool must be"):
            run(kernel, case, rows.bfloat16())
    elif spoil == "heads":
        with pytest.raises(ValueError, match="q_nope must be"):
            run(kernel, (case[0][:, :4], *case[1:]), rows)
    else:
        with pytest.raises(ValueError, match="max_q_len is 9"):
            run(kernel, case, rows, max_q_len=9)


def test_a_cut_that_could_leave_a_thread_block_without_rows_is_refused():
    skip_without("cuda", 8)
    kernel = CudaMlaDecode(torch.device("cuda"), 8, Cut(align=128, min_segment=128))
    with pytest.raises(CudaKernelError, match="min_portion not below"):
        run(kernel, batch([1000], [1], 8), pool())


@pytest.mark.skipif("GLM5_MLA_SHARED_KB" in os.environ, reason="this is that run")
def test_what_a_card_with_less_shared_memory_uses_passes_all_tests_on_this_one_too():
    """SM120's variants in SM90's code: no card of that kind was to be had, and this one would use others."""
    skip_without("cuda", 8)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-k", "cuda or cut", "-p", "no:cacheprovider", __file__],
        env={**os.environ, "GLM5_MLA_SHARED_KB": "99"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
