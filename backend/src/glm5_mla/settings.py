"""What the server's environment chooses: `GLM5_KV_CAST`, `GLM5_KERNEL`, `GLM5_RUN_DIR`, `GLM5_STEP_TIMING`."""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from glm5_mla import kernels
from glm5_mla.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_RUN_DIR = "/run/glm5"


class KvCast(enum.Enum):
    """How rows of an FP8 pool reach an attention kernel."""

    NEVER = "Never"
    """They are read as they are."""
    ACTIVE_ROWS = "ActiveRows"
    """The rows in use are cast to BF16, once a layer and step."""
    WHOLE_POOL = "WholePool"
    """The whole pool is cast to BF16, once a layer and step: what SGLang ships."""


@dataclass(frozen=True)
class Settings:
    """The server's settings, checked."""

    kv_cast: KvCast
    kernel: str
    run_dir: str
    step_timing: bool = True
    """Off only to measure what timing costs."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """Read the settings; raises `Refusal` naming the variable and what it may hold."""
        cast = environment.get("GLM5_KV_CAST", "") or KvCast.NEVER.value
        try:
            kv_cast = KvCast(cast)
        except ValueError:
            allowed = ", ".join(mode.value for mode in KvCast)
            raise Refusal("BadSetting", f"GLM5_KV_CAST is {cast!r}; it may be {allowed}.") from None
        kernel = environment.get("GLM5_KERNEL", "") or "auto"
        if kernel not in kernels.NAMES:
            raise Refusal("BadSetting", f"GLM5_KERNEL is {kernel!r}; it may be {', '.join(kernels.NAMES)}.")
        timing = environment.get("GLM5_STEP_TIMING", "") or "on"
        if timing not in ("on", "off"):
            raise Refusal("BadSetting", f"GLM5_STEP_TIMING is {timing!r}; it may be on, off.")
        run_dir = environment.get("GLM5_RUN_DIR", "") or DEFAULT_RUN_DIR
        return cls(kv_cast, kernel, run_dir, timing == "on")
