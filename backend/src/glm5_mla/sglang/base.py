"""What our attention backends share: the mode, the pool they read, and the clock that watches their layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from glm5_mla.kernels import ROW
from glm5_mla.settings import KvCast, Settings

if TYPE_CHECKING:
    from glm5_mla.timing.clock import StepClock

BF16_ROW_BYTES = 2 * ROW


class MlaBackend:
    """Mixed into each of our backends; being one is how `glm5_mla.sglang.verify` knows them.

    Attributes:
        kv_cast: the mode served. A BF16 pool is served as `Never`: there is nothing to cast.
        kernel_name: the decode kernel, one of `glm5_mla.kernels.NAMES` except auto.
        clock: set once the rank's clock exists.

    """

    def __init__(self, runner: Any, settings: Settings, kernel_name: str) -> None:
        self.kv_cast = settings.kv_cast
        self.kernel_name = kernel_name
        self.clock: StepClock | None = None
        self.pool = runner.token_to_kv_pool
        self.pool_rows = int(self.pool.get_key_buffer(self.pool.start_layer).shape[0])
        self._layers = int(self.pool.layer_num)

    def watching(self, layer: int) -> StepClock | None:
        """Return the clock if it wants marks around layer `layer`'s attention in the forward under way."""
        return self.clock if self.clock is not None and self.clock.watches(layer) else None

    def cast_bytes(self, kv_tokens: int) -> int:
        """Count the bytes that a decode step over `kv_tokens` rows writes in casts, all layers together."""
        if self.kv_cast is KvCast.WHOLE_POOL:
            return self.pool_rows * BF16_ROW_BYTES * self._layers
        if self.kv_cast is KvCast.ACTIVE_ROWS:
            return kv_tokens * BF16_ROW_BYTES * self._layers
        return 0
