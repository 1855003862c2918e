"""The functions of SGLang that the plugin replaces or relies on, and what they were when it was written.

A fingerprint is a hash of a function's syntax tree without its docstrings: comments and layout may change freely.
After checking by hand that the plugin fits another SGLang, add what `glm5-mla audit --fingerprints` prints to `KNOWN`.
"""

from __future__ import annotations

import ast
import hashlib
import json
from functools import lru_cache
from pathlib import Path

from glm5_mla.audit.scan import functions

# Path under the sglang package: qualified names. Kept in the order in which a forward meets them.
RELIED_ON: dict[str, tuple[str, ...]] = {
    "srt/plugins/__init__.py": ("load_plugins_by_group", "load_plugins"),
    "srt/plugins/hook_registry.py": ("HookRegistry.register", "HookRegistry.apply_hooks", "_wrap_fn"),
    "srt/layers/attention/attention_registry.py": ("register_attention_backend", "create_flashinfer_backend"),
    "srt/model_executor/model_runner_components/attention_backend_setup.py": (
        "build_attention_backends",
        "_build_full_attention_backend_from_str",
    ),
    "srt/layers/attention/flashinfer_mla_backend.py": (
        "FlashInferMLAAttnBackend.__init__",
        "FlashInferMLAAttnBackend.init_forward_metadata",
        "FlashInferMLAAttnBackend.init_forward_metadata_out_graph",
        "FlashInferMLAAttnBackend.init_cuda_graph_state",
        "FlashInferMLAAttnBackend._apply_cuda_graph_metadata",
        "FlashInferMLAAttnBackend._build_fast_verify_plan_kwargs",
        "FlashInferMLAAttnBackend.forward_extend",
        "FlashInferMLAAttnBackend.forward_decode",
        "FlashInferMLAIndicesUpdaterDecode.__init__",
        "FlashInferMLAIndicesUpdaterDecode.update",
        "FlashInferMLAIndicesUpdaterDecode.call_begin_forward",
        "FlashInferMLAIndicesUpdaterPrefill.__init__",
        "FlashInferMLAIndicesUpdaterPrefill.update",
        "FlashInferMLAIndicesUpdaterPrefill.call_begin_forward",
        "FlashInferMLAMultiStepDraftBackend.__init__",
        "FlashInferMLAMultiStepDraftBackend.init_cuda_graph_state",
        "fast_mla_decode_plan",
        "fast_mla_prefill_plan",
    ),
    "srt/layers/attention/dsa_backend.py": (
        "DeepseekSparseAttnBackend.__init__",
        "DeepseekSparseAttnBackend._forward_flashmla_kv",
    ),
    "srt/models/deepseek_common/attention_backend_handler.py": (
        "handle_attention_flashinfer",
        "_handle_attention_backend",
    ),
    "srt/mem_cache/memory_pool.py": (
        "MLATokenToKVPool.get_key_buffer",
        "MLATokenToKVPool.set_kv_buffer",
        "MLATokenToKVPool.set_mla_kv_buffer",
        "MLATokenToKVPool._write_mla_kv_buffer",
    ),
    "srt/mem_cache/kv_cache_configurator.py": ("KVCacheConfigurator.configure",),
    "srt/model_executor/pool_configurator.py": (
        "DefaultPoolConfigurator.__init__",
        "DefaultPoolConfigurator._compute_cell_size",
    ),
    "srt/model_executor/model_runner.py": (
        "ModelRunner.init_attention_backends",
        "ModelRunner.forward",
        "ModelRunner._forward_raw",
    ),
    "srt/model_executor/runner/decode_cuda_graph_runner.py": ("DecodeCudaGraphRunner.capture_one_shape",),
    "srt/model_executor/runner_backend/full_cuda_graph_backend.py": (
        "FullCudaGraphBackend.capture_one",
        "FullCudaGraphBackend.replay",
    ),
    "srt/managers/scheduler.py": (
        "Scheduler.event_loop_normal",
        "Scheduler.event_loop_overlap",
        "Scheduler.process_batch_result",
        "Scheduler.on_idle",
    ),
    "srt/managers/scheduler_components/batch_result_processor.py": (
        "SchedulerBatchResultProcessor.process_batch_result_prefill",
        "SchedulerBatchResultProcessor.process_batch_result_decode",
    ),
    "srt/speculative/draft_utils.py": (
        "DraftBackendFactory._create_flashinfer_decode_backend",
        "DraftBackendFactory._create_flashinfer_prefill_backend",
    ),
}

_KNOWN_FILE = Path(__file__).with_name("known.json")


@lru_cache(maxsize=1)
def known() -> dict[str, dict[str, str]]:
    """Return the fingerprints by SGLang version; names are `path:qualified name`."""
    versions: dict[str, dict[str, str]] = json.loads(_KNOWN_FILE.read_text())
    return versions


def fingerprints(package: Path) -> dict[str, str | None]:
    """Return the fingerprint of every relied-on function in the sglang package; None for one that isn't there."""
    found: dict[str, str | None] = {}
    for path, names in RELIED_ON.items():
        file = package / path
        present = dict(functions(ast.parse(file.read_text()))) if file.exists() else {}
        for name in names:
            function = present.get(name)
            found[f"{path}:{name}"] = None if function is None else fingerprint(function)
    return found


def fingerprint(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Hash a function's syntax without docstrings; 16 hexadecimal digits."""
    return hashlib.sha256(_written(_WithoutDocstrings().visit(function)).encode()).hexdigest()[:16]


def _written(value: object) -> str:
    """Write a syntax tree out. Empty fields are left out: which there are changes with Python's version."""
    if isinstance(value, ast.AST):
        fields = (f"{name}={_written(field)}" for name, field in ast.iter_fields(value) if field not in (None, []))
        return f"{type(value).__name__}({', '.join(fields)})"
    if isinstance(value, list):
        return f"[{', '.join(map(_written, value))}]"
    return repr(value)


class _WithoutDocstrings(ast.NodeTransformer):
    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        constant = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return ast.Pass() if constant else node
