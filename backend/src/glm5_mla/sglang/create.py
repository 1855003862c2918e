"""Makes the attention backend for a model runner, or refuses with the reason and the mode that can be had."""

from __future__ import annotations

from typing import Any

from glm5_mla.kernels import KV_LORA_RANK, ROPE_DIM
from glm5_mla.refusal import Refusal
from glm5_mla.settings import KvCast, Settings


def create_mla_backend(runner: Any) -> Any:
    """Make our backend for an MLA `ModelRunner`.

    A refusal is written to the termination log before it is raised: SGLang turns it into a dead rank and a traceback.
    """
    try:
        settings = Settings.from_environment()
        check_model(runner, settings)
        if runner.device == "cpu":
            from glm5_mla.sglang.backend_cpu import CpuMlaBackend

            return CpuMlaBackend(runner, settings)
        from glm5_mla.sglang.backend_cuda import make_cuda_backend

        return make_cuda_backend(runner, settings)
    except Refusal as refusal:
        refusal.record()
        raise


def check_model(runner: Any, settings: Settings) -> None:
    """Refuse a head shape or a pool that the backend doesn't serve in the mode asked for."""
    import torch

    config = runner.model_config
    if (config.kv_lora_rank, config.qk_rope_head_dim) != (KV_LORA_RANK, ROPE_DIM):
        raise Refusal(
            "UnsupportedModel",
            f"The model's latent is {config.kv_lora_rank}+{config.qk_rope_head_dim} wide; this backend reads "
            f"{KV_LORA_RANK}+{ROPE_DIM}. Serve this model with another --attention-backend.",
        )
    pool = runner.token_to_kv_pool
    dtype = pool.get_key_buffer(pool.start_layer).dtype
    if dtype not in (torch.float8_e4m3fn, torch.bfloat16):
        raise Refusal(
            "UnsupportedPool",
            f"The KV pool holds {dtype}; set kvCache.dtype (--kv-cache-dtype) to fp8_e4m3 or bfloat16.",
        )
    if dtype == torch.bfloat16 and settings.kv_cast is not KvCast.NEVER:
        raise Refusal(
            "NothingToCast",
            f"attention.kvCast (GLM5_KV_CAST) is {settings.kv_cast.value}, but the KV pool already holds bfloat16; "
            "use Never, or set kvCache.dtype (--kv-cache-dtype) to fp8_e4m3.",
        )
