"""What `make bench-kernel` takes for the truth, against the reference kernel."""

import pytest

torch = pytest.importorskip("torch")

from glm5_mla import kernels  # noqa: E402
from glm5_mla.bench import kernel as bench  # noqa: E402

pytestmark = pytest.mark.sglang


@pytest.mark.parametrize(("lengths", "query_tokens"), [((40, 40), 1), ((70, 9, 33), 1), ((50, 50, 50), 4)])
def test_every_query_token_sees_the_rows_up_to_its_own(monkeypatch, lengths, query_tokens):
    monkeypatch.setattr(bench, "POOL_ROWS", 500)
    pool = torch.randn((500, 1, bench.ROW), generator=torch.Generator().manual_seed(0)).to(torch.float8_e4m3fn)
    data = bench.make_ragged(lengths, [pool], query_tokens=query_tokens)
    got = kernels.make("reference", torch.device("cpu"), bench.HEADS)(
        *(data.q_nope, data.q_rope, pool, data.qo_indptr, data.kv_indptr, data.kv_indices, bench.SCALE),
        max_q_len=query_tokens,
    )
    assert got.shape == (len(lengths) * query_tokens, bench.HEADS, bench.KV_LORA_RANK)
    assert bench.worst_error(got, data.reference()) < 3e-3
