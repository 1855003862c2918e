"""The decode kernel against the reference: all that a GPU would have to get right, but for the compiler's part."""

import math
import weakref

import pytest
import torch

from glm5_mla.kernels import ROW
from glm5_mla.kernels.reference import ReferenceMlaDecode
from glm5_mla.kernels.triton import BLOCK_ROWS, MOST_SPLITS, TritonMlaDecode
from glm5_mla.selftest import MAX_ERROR, relative_error

CPU = torch.device("cpu")
POOL_ROWS = 2048
SCALE = 1 / 16
NAN = 0x7F
MINUS_ZERO = 0x80


def indptr(lengths):
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)


def random_pool():
    generator = torch.Generator().manual_seed(0)
    return (torch.randn((POOL_ROWS, 1, ROW), generator=generator) * 0.7).to(torch.float8_e4m3fn)


def batch(lengths, queries, heads=8, q_scale=1.0, page_size=1):
    """Queries as views with strides of their own, and lists of rows, in whole pages spread over the pool."""
    generator = torch.Generator().manual_seed(1)
    q = (torch.randn((sum(queries), heads, 768), generator=generator) * q_scale).bfloat16()
    pages = POOL_ROWS // page_size
    rows = [
        (torch.randperm(pages, generator=generator)[: -(-n // page_size), None] * page_size + torch.arange(page_size))
        .flatten()[:n]
        .int()
        for n in lengths
    ]
    return (
        q[..., :512],
        q[..., 704:],
        indptr(queries),
        indptr(lengths),
        torch.cat([torch.zeros(0, dtype=torch.int32), *rows]),
    )


def run(case, pool, kernel=None, max_q_len=1, **more):
    """Attend into a tensor of NaN."""
    kernel = kernel or TritonMlaDecode(CPU, case[0].shape[1])
    out = torch.full(case[0].shape, math.nan, dtype=torch.bfloat16)
    return kernel(*case[:2], pool, *case[2:], SCALE, max_q_len=max_q_len, out=out, **more)


def wanted(case, pool, **more):
    reference = ReferenceMlaDecode(CPU, case[0].shape[1])
    return reference(case[0].float(), case[1].float(), pool, *case[2:], SCALE, **more)


def error(case, pool, max_q_len=1):
    return float(relative_error(run(case, pool, max_q_len=max_q_len), wanted(case, pool)).max())


@pytest.mark.parametrize(
    "lengths",
    [
        [1],
        [BLOCK_ROWS - 1, BLOCK_ROWS, BLOCK_ROWS + 1],
        [1100],
        [300, 1, 77, 640],
        [i * 7 % 40 + 1 for i in range(12)],
    ],
    ids=["one-row", "around-a-tile", "many-splits", "ragged", "many-short"],
)
def test_matches_the_reference_for_any_lengths(lengths):
    case, pool = batch(lengths, [1] * len(lengths)), random_pool()
    lse, wanted_lse = (torch.empty(case[0].shape[:2]) for _ in range(2))
    got, want = run(case, pool, lse=lse), wanted(case, pool, lse=wanted_lse)
    assert relative_error(got, want).max() < MAX_ERROR
    torch.testing.assert_close(lse, wanted_lse, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("heads", [1, 16, 128])
def test_matches_the_reference_for_any_number_of_heads(heads):
    assert error(batch([40], [1], heads), random_pool()) < MAX_ERROR


@pytest.mark.parametrize(
    ("heads", "queries"), [(8, [2, 2]), (8, [3, 0]), (8, [1, 8]), (16, [4, 4]), (16, [1, 8])], ids=str
)
def test_each_query_token_sees_the_rows_up_to_its_own(heads, queries):
    assert error(batch([70, 33], queries, heads), random_pool(), max_q_len=max(queries)) < MAX_ERROR


def test_a_query_as_long_as_its_sequence_begins_with_one_row():
    assert error(batch([8, 4], [8, 4]), random_pool(), max_q_len=8) < MAX_ERROR


def test_a_query_token_before_the_first_row_gets_zero():
    case = batch([3], [5])
    out = run(case, random_pool(), max_q_len=5)
    assert not out[:2].any()
    assert out[2:].abs().amax(dim=(1, 2)).min() > 0


@pytest.mark.parametrize("page_size", [16, 64])
def test_rows_may_come_in_pages(page_size):
    assert error(batch([150, 33], [1, 1], page_size=page_size), random_pool()) < MAX_ERROR


def test_a_request_without_rows_gets_zero_and_a_log_sum_of_minus_infinity():
    case = batch([0, 70, 0], [1, 1, 1])
    lse = torch.empty(case[0].shape[:2])
    out = run(case, random_pool(), lse=lse)
    assert not out[[0, 2]].any()
    assert lse[[0, 2]].eq(-math.inf).all()
    assert relative_error(out, wanted(case, random_pool()))[1].max() < MAX_ERROR


def test_no_requests_are_no_error():
    assert run(batch([], []), random_pool()).shape == (0, 8, 512)


def test_what_rows_outside_the_lists_hold_never_shows():
    case, pool = batch([100, 3], [1, 1]), random_pool()
    clean = run(case, pool)
    outside = torch.ones(len(pool), dtype=torch.bool)
    outside[case[4].long()] = False
    pool.view(torch.uint8)[outside] = NAN
    assert torch.equal(run(case, pool), clean)


@pytest.mark.parametrize(
    ("q_scale", "largest_rows"), [(100.0, False), (1e-4, False), (1.0, True)], ids=["logits", "queries", "rows"]
)
def test_stays_accurate_where_values_are_extreme(q_scale, largest_rows):
    pool = random_pool()
    if largest_rows:
        pool = torch.where(pool.float() > 0, 448.0, -448.0).to(torch.float8_e4m3fn)
    assert error(batch([150, 10], [1, 1], q_scale=q_scale), pool) < MAX_ERROR


def test_zero_and_minus_zero_rows_give_zero():
    pool = torch.zeros((POOL_ROWS, 1, ROW)).to(torch.float8_e4m3fn)
    pool.view(torch.uint8)[::2] = MINUS_ZERO
    assert not run(batch([150], [1]), pool).any()


def test_one_row_that_takes_all_the_weight_comes_out_as_it_is():
    case, pool = batch([100], [1]), random_pool()
    chosen = pool[case[4][61].long(), 0]
    pool[:, :, 512:] = 0
    pool[case[4][61].long(), 0, 512:] = 448.0
    case[1].fill_(1.0)
    assert torch.equal(run(case, pool)[0], chosen[:512].to(torch.bfloat16).expand(8, 512))


def test_a_far_outweighed_crowd_still_counts():
    """One row with a weight 2^25 times that of each of 2,000 others, whose values are as much larger as e4m3 can tell.

    Half a float16's least step is 2^-25: rounded so, all of them together would vanish.
    """
    pool = torch.zeros((POOL_ROWS, 1, ROW))
    pool[1:, :, :256] = 448.0
    pool[0, :, :256] = 2.0**-9
    pool[0, :, 512] = 8.0
    q_nope, q_rope = torch.zeros((1, 8, 512)), torch.zeros((1, 8, 64))
    q_rope[..., 0] = 25 * math.log(2) / SCALE / 8
    rows = torch.arange(2000, dtype=torch.int32)
    case = (q_nope.bfloat16(), q_rope.bfloat16(), indptr([1]), indptr([2000]), rows)
    assert error(case, pool.to(torch.float8_e4m3fn)) < MAX_ERROR


def test_a_pool_scale_applies_to_keys_and_values():
    case, pool = batch([150, 33], [1, 1]), random_pool()
    assert relative_error(run(case, pool, kv_scale=0.25), wanted(case, pool, kv_scale=0.25)).max() < MAX_ERROR


def test_calls_of_different_batches_and_query_lengths_share_one_kernel():
    kernel, pool = TritonMlaDecode(CPU, 8), random_pool()
    for queries, count in ((1, 1), (4, 2), (1, 9), (1, 1)):
        case = batch([20] * count, [queries] * count)
        got = run(case, pool, kernel, max_q_len=queries)
        assert relative_error(got, wanted(case, pool)).max() < MAX_ERROR


def test_workspace_that_a_captured_graph_may_know_outlives_larger_calls(monkeypatch):
    made = []
    empty = torch.empty

    def recording(*args, **kwargs):
        tensor = empty(*args, **kwargs)
        made.append(weakref.ref(tensor))
        return tensor

    kernel, pool = TritonMlaDecode(CPU, 8), random_pool()
    monkeypatch.setattr(torch, "empty", recording)
    for count in (1, 20):
        run(batch([5] * count, [1] * count), pool, kernel)
    assert len(made) >= 2
    assert all(reference() is not None for reference in made)


@pytest.mark.parametrize("requests", [1, 2, 3, 7, 8, 64, 500])
def test_splits_are_a_power_of_two_that_the_workspace_stays_small_with(requests):
    splits = TritonMlaDecode(CPU, 8).splits(requests, 1)
    assert splits in [1 << i for i in range(MOST_SPLITS.bit_length())]
    assert requests * splits <= max(requests, 4 * 4)


def test_a_pool_of_another_type_is_refused():
    with pytest.raises(ValueError, match=r"pool must be float8_e4m3fn, not torch\.bfloat16"):
        run(batch([3], [1]), random_pool().bfloat16())
