"""The reference kernel and the row cast, against attention written out in float64."""

import pytest

torch = pytest.importorskip("torch")

from glm5_mla import kernels, selftest  # noqa: E402
from glm5_mla.kernels.reference import TILE_ROWS, ReferenceMlaDecode  # noqa: E402
from glm5_mla.kernels.rowcast import RowCast  # noqa: E402

pytestmark = pytest.mark.sglang
CPU = torch.device("cpu")
POOL_ROWS = 3 * TILE_ROWS


def make(lengths, queries, heads=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    tokens = sum(queries)
    q = torch.randn((tokens, heads, kernels.ROW), generator=generator).to(torch.bfloat16)
    pool = torch.randn((POOL_ROWS, 1, kernels.ROW), generator=generator).to(torch.float8_e4m3fn)
    indices = torch.cat([torch.randperm(POOL_ROWS, generator=generator)[:n] for n in lengths]).int()
    indptr = [torch.tensor([0, *n], dtype=torch.int32).cumsum(0, dtype=torch.int32) for n in (queries, lengths)]
    return q[..., :512], q[..., 512:], pool, *indptr, indices


def written_out(q_nope, q_rope, pool, qo_indptr, kv_indptr, kv_indices, scale, kv_scale=1.0):
    out, log_sums = [], []
    for b in range(len(qo_indptr) - 1):
        rows = pool[kv_indices[kv_indptr[b] : kv_indptr[b + 1]].long(), 0].double() * kv_scale
        q = torch.cat([q_nope, q_rope], -1)[qo_indptr[b] : qo_indptr[b + 1]].double()
        for i in range(len(q)):
            seen = rows[: len(rows) - len(q) + i + 1]
            scores = q[i] @ seen.T * scale
            out.append(torch.softmax(scores, -1) @ seen[:, :512])
            log_sums.append(torch.logsumexp(scores, -1))
    return torch.stack(out), torch.stack(log_sums)


@pytest.mark.parametrize(
    ("lengths", "queries"),
    [
        ([1], [1]),
        ([5, TILE_ROWS, TILE_ROWS + 1], [1, 1, 1]),  # decode, around the edges of a tile
        ([700], [700]),  # prefill without a prefix
        ([2 * TILE_ROWS + 3, 40], [TILE_ROWS + 5, 4]),  # prefill onto a prefix beside a verification
    ],
)
def test_agrees_with_attention_written_out(lengths, queries):
    case = make(lengths, queries)
    lse = torch.empty(sum(queries), 4)
    got = ReferenceMlaDecode(CPU, 4)(*case, sm_scale=0.05, max_q_len=max(queries), lse=lse)
    wanted, log_sums = written_out(*case, 0.05)
    assert selftest.relative_error(got, wanted).max() < 3e-3
    torch.testing.assert_close(lse.double(), log_sums, rtol=1e-4, atol=1e-4)


def test_a_pool_of_scaled_values_is_read_with_its_scale():
    case = make([300], [1])
    got = ReferenceMlaDecode(CPU, 4)(*case, sm_scale=0.05, kv_scale=0.25)
    assert selftest.relative_error(got, written_out(*case, 0.05, 0.25)[0]).max() < 3e-3


def test_a_bfloat16_copy_of_the_rows_gives_the_very_same_result():
    q_nope, q_rope, pool, *lists = make([900, 30], [1, 1])
    kernel = ReferenceMlaDecode(CPU, 4)
    cast = RowCast(POOL_ROWS, CPU)(pool, lists[1], lists[2])
    as_it_is = kernel(q_nope, q_rope, pool, *lists, sm_scale=0.05)
    assert torch.equal(as_it_is, kernel(q_nope, q_rope, cast, *lists, sm_scale=0.05))
    assert torch.equal(as_it_is, kernel(q_nope, q_rope, pool.to(torch.bfloat16), *lists, sm_scale=0.05))


def test_rows_that_no_request_lists_never_matter():
    q_nope, q_rope, pool, *lists = make([50], [1])
    kernel = ReferenceMlaDecode(CPU, 4)
    before = kernel(q_nope, q_rope, pool, *lists, sm_scale=0.05)
    unused = torch.ones(POOL_ROWS, dtype=torch.bool)
    unused[lists[2].long()] = False
    pool.view(torch.uint8)[unused] = 0x7F  # NaN
    assert torch.equal(before, kernel(q_nope, q_rope, pool, *lists, sm_scale=0.05))


def test_casting_rows_touches_no_other_row_and_only_as_many_as_are_listed():
    pool = torch.full((8, 1, kernels.ROW), 2.0).to(torch.float8_e4m3fn)
    cast = RowCast(8, CPU)(pool, torch.tensor([0, 1, 2], dtype=torch.int32), torch.tensor([6, 1, 3], dtype=torch.int32))
    assert cast.dtype == torch.bfloat16
    assert cast[:, 0, 0].tolist() == [0, 2, 0, 0, 0, 0, 2, 0]
