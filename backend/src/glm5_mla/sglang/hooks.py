"""Puts the clock around each rank's decode forwards, and counts tokens where the scheduler gives them to requests.

All of it goes through SGLang's own hook registry; the hooked functions are listed in `HOOKED` and checked by the audit.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
from typing import TYPE_CHECKING, Any

from glm5_mla.refusal import Refusal
from glm5_mla.settings import Settings
from glm5_mla.sglang import verify
from glm5_mla.timing.clock import HostClock, StepClock
from glm5_mla.timing.rankfile import RankFileError, RankWriter
from glm5_mla.timing.steps import StepTimer, output_length

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

_MODEL_RUNNER = "sglang.srt.model_executor.model_runner.ModelRunner."
_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler."
_CONFIGURATOR = "sglang.srt.mem_cache.kv_cache_configurator.KVCacheConfigurator."
_POOL_SIZES = "sglang.srt.model_executor.pool_configurator.DefaultPoolConfigurator."
_DRAFT_FACTORY = "sglang.srt.speculative.draft_utils.DraftBackendFactory."

HOOKED = (
    _MODEL_RUNNER + "init_attention_backends",
    _MODEL_RUNNER + "forward",
    _SCHEDULER + "process_batch_result",
    _SCHEDULER + "on_idle",
    _CONFIGURATOR + "configure",
    _POOL_SIZES + "_compute_cell_size",
    _DRAFT_FACTORY + "_create_flashinfer_decode_backend",
    _DRAFT_FACTORY + "_create_flashinfer_prefill_backend",
)

# The rank that this process is, once its attention backend stands. A process holds one target model at most.
_timer: StepTimer | None = None


def install() -> None:
    """Register the hooks; SGLang applies them when all plugins have been called."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    hooks: tuple[tuple[Callable[..., Any], HookType], ...] = (
        (_after_init_attention_backends, HookType.AFTER),
        (_around_forward, HookType.AROUND),
        (_around_process_batch_result, HookType.AROUND),
        (_before_on_idle, HookType.BEFORE),
        (_around_configure, HookType.AROUND),
        (_after_compute_cell_size, HookType.AFTER),
        (_after_create_draft_decode, HookType.AFTER),
        (_around_create_draft_prefill, HookType.AROUND),
    )
    for target, (hook, kind) in zip(HOOKED, hooks, strict=True):
        HookRegistry.register(target, hook, kind)


def _after_init_attention_backends(result: None, runner: Any) -> None:
    """Prove which backend the target model got, then put the clock in place; before any CUDA graph is captured."""
    del result
    from sglang.srt.runtime_context import get_parallel

    if runner.is_draft_worker:
        return
    try:
        info = verify.backend_in_use(runner)
        if info is None:
            return
        settings = Settings.from_environment()
        parallel = get_parallel()
        rank = parallel.tp_rank + parallel.pp_rank * parallel.tp_size
        writer = RankWriter(settings.run_dir, rank, parallel.tp_size * parallel.pp_size, info)
    except Refusal as refusal:
        refusal.record()
        raise
    except RankFileError as error:
        if "GLM5_RUN_DIR" not in os.environ:
            logger.warning("Decode steps are not timed: %s.", error)
            return
        unusable = Refusal("RunDirUnusable", f"Decode steps can't be timed: {error}.")
        unusable.record()
        raise unusable from error
    atexit.register(writer.close)
    if not settings.step_timing:
        return
    clock = _make_clock(runner)
    for leaf in verify.leaves(runner.attn_backend):
        _watch(leaf, clock)
    _time_model(runner.model, clock)
    global _timer
    _timer = StepTimer(clock, writer)


def _make_clock(runner: Any) -> StepClock:
    if runner.device == "cpu":
        return HostClock()
    from glm5_mla.timing.device_clock import DeviceClock

    pool = runner.token_to_kv_pool
    return DeviceClock(range(pool.start_layer, pool.start_layer + pool.layer_num))


def _watch(backend: Any, clock: StepClock) -> None:
    """Have the backend's attention timed: ours marks cast and attention itself, SGLang's sparse one as a whole."""
    from glm5_mla.sglang.base import MlaBackend

    if isinstance(backend, MlaBackend):
        backend.clock = clock
        return
    forward_decode = backend.forward_decode

    @functools.wraps(forward_decode)
    def timed(q: Any, k: Any, v: Any, layer: Any, *args: Any, **kwargs: Any) -> Any:
        if not clock.watches(layer.layer_id):
            return forward_decode(q, k, v, layer, *args, **kwargs)
        clock.mark_begin()
        out = forward_decode(q, k, v, layer, *args, **kwargs)
        clock.mark_attention()
        return out

    backend.forward_decode = timed


def is_decode_step(forward_batch: Any) -> bool:
    """Tell a decode forward: one token a request, or the verification of draft tokens."""
    mode = forward_batch.forward_mode
    return bool(mode.is_decode() or mode.is_target_verify())


def _time_model(model: Any, clock: StepClock) -> None:
    """Wrap the model's forward on the instance: this is what eager forwards call and what graph capture records."""
    forward = model.forward

    @functools.wraps(forward)
    def timed(input_ids: Any, positions: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_decode_step(forward_batch):
            return forward(input_ids, positions, forward_batch, *args, **kwargs)
        clock.start()
        out = forward(input_ids, positions, forward_batch, *args, **kwargs)
        clock.end()
        return out

    model.forward = timed


def _around_forward(original: Callable[..., Any], runner: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
    timer = _timer
    if timer is None or runner.is_draft_worker:
        return original(runner, forward_batch, *args, **kwargs)
    if not is_decode_step(forward_batch):
        timer.interrupted()
        return original(runner, forward_batch, *args, **kwargs)
    clock = timer.clock
    before = clock.executions
    batch = forward_batch.batch_size
    kv_tokens = _kv_tokens(forward_batch)
    output = original(runner, forward_batch, *args, **kwargs)
    graph = clock.executions == before and runner.device != "cpu"
    if graph:
        clock.replayed()
    cast_bytes = getattr(runner.attn_backend, "cast_bytes", None)
    timer.launched(batch, kv_tokens, graph, cast_bytes(kv_tokens) if cast_bytes else 0)
    return output


def _kv_tokens(forward_batch: Any) -> int:
    """Count the rows that a decode step attends to; known on the host, never asked of the device."""
    tokens = forward_batch.seq_lens_sum
    if tokens is None:
        lengths = forward_batch.seq_lens_cpu
        tokens = 0 if lengths is None else int(lengths.sum())
    if forward_batch.forward_mode.is_target_verify():
        tokens += forward_batch.batch_size * forward_batch.spec_info.draft_token_num
    return int(tokens)


def _around_process_batch_result(
    original: Callable[..., Any], scheduler: Any, batch: Any, result: Any, *args: Any, **kwargs: Any
) -> Any:
    timer = _timer
    if timer is None:
        return original(scheduler, batch, result, *args, **kwargs)
    requests = list(batch.reqs)
    before = [output_length(request) for request in requests]
    out = original(scheduler, batch, result, *args, **kwargs)
    timer.processed(requests, before, decoding=batch.forward_mode.is_decode())
    return out


def _before_on_idle(scheduler: Any) -> None:
    del scheduler
    if _timer is not None:
        _timer.idle()


def _after_create_draft_decode(created: tuple[str, Any], factory: Any) -> None:
    """Replace the steps of a draft model's backend: SGLang makes them by name, not through the registry."""
    runner = factory.draft_model_runner
    if runner.use_mla_backend:
        from glm5_mla.sglang.backend_cuda import replace_draft_steps

        replace_draft_steps(created[1], runner, Settings.from_environment())


def _around_create_draft_prefill(original: Callable[..., Any], factory: Any) -> Any:
    """Make the backend in which a draft model reads what the target accepted; the same as for the steps."""
    runner = factory.draft_model_runner
    if not runner.use_mla_backend:
        return original(factory)
    from glm5_mla.sglang.create import create_mla_backend

    return "flashinfer", create_mla_backend(runner)


def _around_configure(original: Callable[..., Any], configurator: Any, *args: Any, **kwargs: Any) -> Any:
    """On a CPU, let an MLA pool be FP8: SGLang refuses it because none of its own CPU backends reads one."""
    from sglang.srt.mem_cache import kv_cache_configurator as module

    platform = module.current_platform
    if not (platform.is_cpu() and configurator.use_mla_backend):
        return original(configurator, *args, **kwargs)
    module.current_platform = _NotSayingCpu(platform)
    try:
        return original(configurator, *args, **kwargs)
    finally:
        module.current_platform = platform


def _after_compute_cell_size(row_bytes: int, sizes: Any, configurator: Any, layers: int) -> int:
    """Have SGLang size its pool with room for our buffer of cast rows, which is as long as the pool."""
    del sizes, layers
    from sglang.srt.runtime_context import attention_backends, get_parallel

    if configurator.is_draft_worker or not configurator.use_mla_backend or set(attention_backends()) != {verify.DENSE}:
        return row_bytes
    import torch

    from glm5_mla.sglang.reading import cast_buffer_bytes

    device = torch.device("cpu") if configurator.device == "cpu" else torch.device("cuda", configurator.gpu_id)
    heads = configurator.model_config.num_attention_heads // get_parallel().attn_tp_size
    more = cast_buffer_bytes(Settings.from_environment(), configurator.kv_cache_dtype, device, heads)
    if more:
        logger.info("A row of the KV pool takes %d bytes, and %d more in the buffer of cast rows.", row_bytes, more)
    return row_bytes + more


class _NotSayingCpu:
    """SGLang's platform object, except that it denies being a CPU."""

    def __init__(self, platform: Any) -> None:
        self._platform = platform

    def __getattr__(self, name: str) -> Any:
        return getattr(self._platform, name)

    def is_cpu(self) -> bool:
        return False
