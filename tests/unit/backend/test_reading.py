"""What is refused because it could only be had with casts that the mode promises not to make."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from glm5_mla.refusal import Refusal  # noqa: E402
from glm5_mla.sglang.reading import Reading, check_verification  # noqa: E402

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
