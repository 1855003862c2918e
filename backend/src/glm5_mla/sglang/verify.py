"""Proof that our attention backend is the one in use: SGLang itself goes on without a plugin that failed.

`glm5-mla serve` sets `REQUIRED_VARIABLE`: nothing else than our backend (or SGLang's sparse one, which reads an FP8
pool by itself) may serve then. Without it an installed plugin leaves servers alone that use other backends.
"""

from __future__ import annotations

import importlib.metadata
import os
from typing import TYPE_CHECKING, Any

import glm5_mla
from glm5_mla.refusal import Refusal
from glm5_mla.timing.rankfile import BackendInfo, rank_path
from glm5_mla.timing.rankreader import RankReader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

REQUIRED_VARIABLE = "GLM5_BACKEND_REQUIRED"

DENSE = "flashinfer"
SPARSE = ("dsa", "nsa")  # the second is SGLang's older name of the first
POOL_QUANTIZER = "flashmla_kv"  # the sparse kernel for which SGLang quantizes a bfloat16 pool


def process() -> None:
    """Prove that this process's SGLang would make our backend; for the launcher, after SGLang's `load_plugins()`.

    Raises `Refusal` with what to change.
    """
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS

    if getattr(ATTENTION_BACKENDS.get(DENSE), "__module__", None) != "glm5_mla.sglang.plugin":
        allowed = os.environ.get("SGLANG_PLUGINS")
        cause = (
            f"SGLANG_PLUGINS={allowed} leaves it out; add glm5_mla."
            if allowed and "glm5_mla" not in [name.strip() for name in allowed.split(",")]
            else "Its entry point failed or is not installed; SGLang's log has the traceback."
        )
        raise Refusal("BackendNotInPlace", f"SGLang did not take the attention backend of glm5-mla. {cause}")


def ranks(run_dir: str | Path, world_size: int) -> None:
    """Prove that every rank wrote a file which says that the backend is in use; for the launcher, once it is ready.

    Raises `Refusal` naming the first rank that did not.
    """
    for rank in range(world_size):
        path = rank_path(run_dir, rank)
        try:
            info = RankReader(path).read().info
        except Exception as error:
            raise Refusal("BackendNotVerified", f"Rank {rank} did not report its attention backend: {error}") from error
        if not info.verified:
            raise Refusal("BackendNotVerified", f"Rank {rank} reports an attention backend that is not verified.")


def leaves(backend: Any) -> Iterator[Any]:
    """Yield the attention backends inside SGLang's wrappers (two-batch overlap, one for prefill and one for decode)."""
    inner = [
        getattr(backend, name)
        for name in ("primary", "decode_backend", "prefill_backend")
        if getattr(backend, name, None) is not None
    ]
    if not inner:
        yield backend
    for child in inner:
        yield from leaves(child)


def backend_in_use(runner: Any) -> BackendInfo | None:
    """Prove that the target model's runner got our backend, or SGLang's sparse one.

    Returns what to report; None when another backend was chosen and none of ours is required. Raises `Refusal` when one
    is required, or when `flashinfer` was chosen for an MLA model and is not ours.
    """
    from glm5_mla.sglang.base import MlaBackend

    names = {runner.prefill_attention_backend_str, runner.decode_attention_backend_str}
    if names <= set(SPARSE):
        if not any(_quantizes_the_pool(backend) for backend in leaves(runner.attn_backend)):
            return _info(runner, kv_cast="Never", kernel="sglang-dsa")
        if os.environ.get(REQUIRED_VARIABLE) == "1":
            raise Refusal(
                "UnsupportedPool",
                f"SGLang's sparse kernel {POOL_QUANTIZER} reads FP8 rows: from a bfloat16 pool it would quantize the "
                "whole pool in each layer of each step. Set kvCache.dtype (--kv-cache-dtype) to fp8_e4m3, or leave out "
                "--dsa-prefill-backend and --dsa-decode-backend.",
            )
        return _info(runner, kv_cast="WholePool", kernel="sglang-dsa")
    if names == {DENSE} and runner.use_mla_backend:
        backends = list(leaves(runner.attn_backend))
        if not all(isinstance(backend, MlaBackend) for backend in backends):
            found = ", ".join(sorted({type(backend).__name__ for backend in backends}))
            raise Refusal("BackendNotInPlace", f"The model's attention runs in {found}, not in glm5-mla's backend.")
        return _info(runner, kv_cast=backends[0].kv_cast.value, kernel=backends[0].kernel_name)
    if os.environ.get(REQUIRED_VARIABLE) != "1":
        return None
    if not runner.use_mla_backend:
        raise Refusal("UnsupportedModel", "The model doesn't use multi-head latent attention (MLA); GLM-5 does.")
    raise Refusal(
        "WrongAttentionBackend",
        f"SGLang serves with attention backend {' and '.join(sorted(map(str, names)))}; set --attention-backend "
        f"{DENSE} (dense, glm5-mla) or {SPARSE[0]} (sparse, SGLang's own).",
    )


def _quantizes_the_pool(sparse: Any) -> bool:
    kernels = {getattr(sparse, name, None) for name in ("dsa_prefill_impl", "dsa_decode_impl")}
    return POOL_QUANTIZER in kernels and not sparse.dsa_kv_cache_store_fp8


def _info(runner: Any, kv_cast: str, kernel: str) -> BackendInfo:
    import torch

    return BackendInfo(
        kv_cast=kv_cast,
        kernel=kernel,
        version=glm5_mla.__version__,
        sglang=_version("sglang"),
        flashinfer=_version("flashinfer-python"),
        torch=_version("torch"),
        gpu=torch.cuda.get_device_name() if runner.device == "cuda" else "",
        verified=True,
    )


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""
