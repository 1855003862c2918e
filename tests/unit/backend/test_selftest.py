"""The numerical test at start: a right kernel passes, and each kind of wrong one is refused."""

import itertools

import pytest

torch = pytest.importorskip("torch")

from glm5_mla import selftest  # noqa: E402
from glm5_mla.kernels.reference import ReferenceMlaDecode  # noqa: E402
from glm5_mla.refusal import Refusal  # noqa: E402
from glm5_mla.sglang.reading import Reading  # noqa: E402

pytestmark = pytest.mark.sglang
CPU = torch.device("cpu")
HEADS = 2


def check(kernel):
    return selftest.check(Reading("tested", kernel, torch.float8_e4m3fn, None), HEADS, CPU)


def right(*args, **kwargs):
    return ReferenceMlaDecode(CPU, HEADS)(*args, **kwargs)


def test_a_right_kernel_passes_with_no_more_error_than_its_output_type_costs():
    assert check(right) < 2e-3


def wrong_scale(*args, sm_scale):
    return right(*args, sm_scale=sm_scale * 1.02)


def drops_the_last_row(q_nope, q_rope, pool, qo_indptr, kv_indptr, kv_indices, sm_scale):
    lists = [kv_indices[a : max(a + 1, b - 1)] for a, b in itertools.pairwise(kv_indptr)]
    indptr = torch.tensor([0, *map(len, lists)], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    return right(q_nope, q_rope, pool, qo_indptr, indptr, torch.cat(lists), sm_scale=sm_scale)


def reads_a_row_it_was_not_given(q_nope, q_rope, pool, qo_indptr, kv_indptr, kv_indices, sm_scale):
    return right(q_nope, q_rope, pool, qo_indptr, kv_indptr, (kv_indices + 1) % len(pool), sm_scale=sm_scale)


def writes_nothing(q_nope, *args, **kwargs):
    return torch.full_like(q_nope, float("nan"))


@pytest.mark.parametrize("kernel", [wrong_scale, drops_the_last_row, reads_a_row_it_was_not_given, writes_nothing])
def test_a_wrong_kernel_is_refused_by_name(kernel):
    with pytest.raises(Refusal, match="Kernel tested is off by") as refused:
        check(kernel)
    assert refused.value.reason == "SelfTestFailed"
