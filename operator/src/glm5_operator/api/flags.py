"""SGLang arguments that fields of the object own, so that `extraArgs` can't contradict them.

Names and aliases as in SGLang 0.5.23 (sglang/srt/arg_groups/fields).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class TypedFlag:
    """A flag with its aliases, and what to do instead of passing it."""

    flags: tuple[str, ...]
    remedy: str


TYPED_FLAGS = (
    TypedFlag(("--model-path", "--model"), "use spec.model.source and spec.model.path"),
    TypedFlag(("--served-model-name",), "use spec.model.name"),
    TypedFlag(("--quantization",), "use spec.model.quantization"),
    TypedFlag(("--tp-size", "--tensor-parallel-size", "--tp"), "use spec.gpus.tensorParallelSize"),
    TypedFlag(
        ("--attention-backend", "--decode-attention-backend", "--prefill-attention-backend"),
        "use spec.attention.algorithm",
    ),
    TypedFlag(("--json-model-override-args",), "spec.attention.algorithm sets it"),
    TypedFlag(("--kv-cache-dtype",), "use spec.kvCache.dtype"),
    TypedFlag(("--max-total-tokens",), "use spec.kvCache.maxTokens"),
    TypedFlag(("--mem-fraction-static",), "use spec.kvCache.memoryFraction"),
    TypedFlag(("--context-length",), "use spec.contextLength"),
    TypedFlag(("--max-running-requests",), "use spec.maxRunningRequests"),
    TypedFlag(
        (
            "--speculative-algorithm",
            "--speculative-num-steps",
            "--speculative-eagle-topk",
            "--speculative-num-draft-tokens",
            "--speculative-draft-model-path",
            "--speculative-draft-model",
        ),
        "use spec.speculativeDecoding",
    ),
    TypedFlag(("--tool-call-parser",), "use spec.server.toolCallParser"),
    TypedFlag(("--reasoning-parser",), "use spec.server.reasoningParser"),
    TypedFlag(("--host", "--port"), "use spec.server.port"),
    TypedFlag(("--api-key",), "use spec.server.apiKeySecretRef, which keeps it out of the logs"),
    TypedFlag(("--enable-metrics",), "metrics are always on"),
)
