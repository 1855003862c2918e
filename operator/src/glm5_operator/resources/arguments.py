"""SGLang's command line, from the fields of the object."""

import json

from .context import Context
from .volumes import MODEL_DIRECTORY

# A GLM-5 checkpoint read by this class skips the sparse indexer: all rows are attended to.
DENSE_ARCHITECTURE = "DeepseekV2ForCausalLM"


def model_path(context: Context) -> str:
    """Directory of the weights inside the container."""
    path = context.spec.model.path.strip("/")
    return f"{MODEL_DIRECTORY}/{path}" if path else MODEL_DIRECTORY


def sglang_arguments(context: Context) -> list[str]:
    """Arguments of `sglang.launch_server`, in the order: model, shape, attention, limits, API, the user's own."""
    spec = context.spec
    arguments = ["--model-path", model_path(context), "--served-model-name", spec.model.name or context.name]
    if spec.model.quantization:
        arguments += ["--quantization", spec.model.quantization]
    arguments += ["--tp-size", str(context.tensor_parallel_size), "--kv-cache-dtype", spec.kv_cache.dtype]
    if spec.attention.algorithm == "Dense":
        # The plugin registers this project's backend under SGLang's own name. Without a backend flag SGLang takes
        # its sparse backend for GLM-5.
        override = json.dumps({"architectures": [DENSE_ARCHITECTURE]}, separators=(",", ":"))
        arguments += ["--attention-backend", "flashinfer", "--json-model-override-args", override]
    for flag, value in (
        ("--max-total-tokens", spec.kv_cache.max_tokens),
        ("--mem-fraction-static", spec.kv_cache.memory_fraction),
        ("--context-length", spec.context_length),
        ("--max-running-requests", spec.max_running_requests),
    ):
        if value is not None:
            arguments += [flag, str(value)]
    arguments += _speculative_arguments(context)
    arguments += ["--host", "0.0.0.0", "--port", str(spec.server.port), "--enable-metrics"]
    if spec.server.tool_call_parser:
        arguments += ["--tool-call-parser", spec.server.tool_call_parser]
    if spec.server.reasoning_parser:
        arguments += ["--reasoning-parser", spec.server.reasoning_parser]
    return arguments + spec.server.extra_args


def _speculative_arguments(context: Context) -> list[str]:
    draft = context.spec.speculative_decoding
    if draft is None:
        return []
    arguments = [
        *("--speculative-algorithm", draft.algorithm),
        *("--speculative-num-steps", str(draft.steps)),
        *("--speculative-eagle-topk", str(draft.top_k)),
        *("--speculative-num-draft-tokens", str(draft.draft_tokens)),
    ]
    if draft.draft_model_path:
        arguments += ["--speculative-draft-model-path", f"{MODEL_DIRECTORY}/{draft.draft_model_path.strip('/')}"]
    return arguments
