"""The kernel of mode ActiveRows against torch."""

import pytest
import torch
from conftest import PROCESSORS

from glm5_mla.kernels import ROW
from glm5_mla.kernels.rowcast_triton import PROGRAMS_PER_SM, ROWS_PER_PROGRAM, cast_rows

AT_ONCE = PROCESSORS * PROGRAMS_PER_SM * ROWS_PER_PROGRAM
POOL_ROWS = 2 * AT_ONCE + 100


def every_value(rows):
    """Bytes of every value that e4m3 has."""
    values = torch.arange(rows * ROW).view(rows, 1, ROW) % 256
    return values.to(torch.uint8).view(torch.float8_e4m3fn)


@pytest.mark.parametrize("listed", [0, 1, ROWS_PER_PROGRAM + 1, AT_ONCE, 2 * AT_ONCE + 5])
def test_converts_the_listed_rows_exactly_and_no_other(listed):
    pool = every_value(POOL_ROWS)
    indices = torch.randperm(POOL_ROWS, generator=torch.Generator().manual_seed(0)).int()
    lists = torch.tensor([0, listed // 2, listed], dtype=torch.int32), indices
    out = torch.full(pool.shape, 7.0, dtype=torch.bfloat16)
    cast_rows(pool, *lists, out)
    inside, outside = indices[:listed].long(), indices[listed:].long()
    assert torch.equal(out[inside].view(torch.int16), pool.to(torch.bfloat16)[inside].view(torch.int16))
    assert out[outside].eq(7).all()


def test_a_row_that_two_requests_share_may_be_listed_twice():
    pool, out = every_value(40), torch.zeros((40, 1, ROW), dtype=torch.bfloat16)
    rows = torch.tensor([3, 9, 3], dtype=torch.int32)
    cast_rows(pool, torch.tensor([0, 2, 3], dtype=torch.int32), rows, out)
    assert torch.equal(out[[3, 9]].view(torch.int16), pool.to(torch.bfloat16)[[3, 9]].view(torch.int16))


def test_buffers_of_another_size_than_the_pool_are_refused():
    lists = torch.tensor([0, 1], dtype=torch.int32), torch.tensor([0], dtype=torch.int32)
    with pytest.raises(ValueError, match=r"expected contiguous \[rows, 1, 576\]"):
        cast_rows(every_value(4), *lists, torch.zeros((5, 1, ROW), dtype=torch.bfloat16))
