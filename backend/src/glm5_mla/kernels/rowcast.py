"""Mode ActiveRows: the rows in use, gathered and cast to BF16 in one pass.

A cast row keeps its number: it goes to the same place of a BF16 buffer as large as the pool, which all layers share. So
the row lists stay valid as they are, plans made from them too, and a prefix that requests share needs no second place
(the sum of their lengths may exceed the pool).
"""

from __future__ import annotations

import torch

from glm5_mla.kernels import ROW


class RowCast:
    """Casts listed rows of FP8 pools of `rows` rows; on a GPU by one Triton kernel that can be captured in a graph."""

    def __init__(self, rows: int, device: torch.device) -> None:
        # Zeros: an attention kernel may multiply rows outside of its list by 0, and 0 times NaN is NaN.
        self._buffer = torch.zeros((rows, 1, ROW), dtype=torch.bfloat16, device=device)

    def __call__(self, pool: torch.Tensor, kv_indptr: torch.Tensor, kv_indices: torch.Tensor) -> torch.Tensor:
        """Return the shared buffer [rows, 1, 576] bfloat16, in which the listed rows of `pool` are now valid.

        Args:
            pool: [rows, 1, 576] float8_e4m3fn.
            kv_indptr: [requests + 1] int32; its last entry says how many of `kv_indices` count.
            kv_indices: int32 row numbers.

        """
        if pool.is_cuda:
            from glm5_mla.kernels.rowcast_triton import cast_rows

            cast_rows(pool, kv_indptr, kv_indices, self._buffer)
        else:
            listed = kv_indices[: int(kv_indptr[-1])].long()
            self._buffer[listed] = pool.view(torch.uint8)[listed].view(pool.dtype).to(torch.bfloat16)
        return self._buffer
