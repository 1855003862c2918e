"""The entry point `sglang.srt.plugins`: what SGLang calls once in each of its processes.

Our MLA attention backend takes SGLang's own name `flashinfer`, so that no list of names in SGLang has to be touched.
SGLang only logs a plugin that raises: `glm5_mla.sglang.verify` proves the effect.
"""

from __future__ import annotations

import sys
from typing import Any

BACKEND_NAME = "flashinfer"


def register() -> None:
    """Take the name `flashinfer`, and in processes that can become a rank hook the scheduler and the model runner."""
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS, register_attention_backend

    shipped = ATTENTION_BACKENDS[BACKEND_NAME]

    def create_attention_backend(runner: Any) -> Any:
        # Draft models of another architecture, and whatever else is not MLA, keep SGLang's own class.
        if not runner.use_mla_backend:
            return shipped(runner)
        from glm5_mla.sglang.create import create_mla_backend

        return create_mla_backend(runner)

    register_attention_backend(BACKEND_NAME)(create_attention_backend)

    # The detokenizer loads plugins too, and must not import the scheduler for it.
    if "sglang.srt.managers.scheduler" in sys.modules:
        from glm5_mla.sglang import hooks

        hooks.install()
