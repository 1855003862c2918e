"""What is refused because it could only be had with casts, and where rows that are cast take memory."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from glm5_mla.refusal import Refusal  # noqa: E402
from glm5_mla.settings import KvCast, Settings  # noqa: E402
from glm5_mla.sglang import reading as module  # noqa: E402
from glm5_mla.sglang.reading import Reading, cast_buffer_bytes, check_verification  # noqa: E402

pytestmark = pytest.mark.sglang
SHORT = SimpleNamespace(max_query_len=8)


def test_more_draft_tokens_than_the_kernel_takes_are_refused_where_flashinfer_would_cast_for_them():
    reading = Reading("cuda", SHORT, torch.bfloat16, None)
    with pytest.raises(Refusal, match=r"at most 8 .* with 16 .*draftTokens .* to 8 or less.*ActiveRows") as refused:
        check_verification(reading, 16)
    assert refused.value.reason == "UnsupportedSpeculation"


@pytest.mark.parametrize(
    ("kernel", "flashinfer_dtype", "draft_tokens"),
    [
        (SHORT, torch.bfloat16, 8),
        (SHORT, torch.float8_e4m3fn, 16),  # FlashInfer verifies without a cast
        (None, torch.bfloat16, 16),  # the mode says that rows are cast
    ],
)
def test_other_verifications_are_taken(kernel, flashinfer_dtype, draft_tokens):
    check_verification(Reading("one", kernel, flashinfer_dtype, None), draft_tokens)


@pytest.mark.parametrize(
    ("mode", "device", "flashinfer", "bytes_a_row"),
    [
        (KvCast.ACTIVE_ROWS, "cuda", "takes FP8", 1152),
        (KvCast.ACTIVE_ROWS, "cpu", "is absent", 1152),
        (KvCast.NEVER, "cuda", "takes FP8", 0),
        (KvCast.NEVER, "cuda", "takes none", 1152),  # a prefill onto a cached prefix casts its rows
        (KvCast.NEVER, "cpu", "is absent", 0),
        (KvCast.WHOLE_POOL, "cuda", "takes none", 0),  # SGLang sizes its pool without what it casts to
    ],
)
def test_a_row_of_the_pool_costs_the_row_of_the_buffer_too(monkeypatch, mode, device, flashinfer, bytes_a_row):
    reason = None if flashinfer == "takes FP8" else "no"
    monkeypatch.setattr(module, "flashinfer_fp8_unavailable", lambda device, heads: reason)
    settings = Settings(mode, "auto", "/run/glm5")
    assert cast_buffer_bytes(settings, torch.float8_e4m3fn, torch.device(device), 8) == bytes_a_row


def test_a_bfloat16_pool_has_no_buffer_beside_it():
    settings = Settings(KvCast.NEVER, "auto", "/run/glm5")
    assert cast_buffer_bytes(settings, torch.bfloat16, torch.device("cuda"), 8) == 0
