"""SGLang arguments that `extraArgs` must not hold: fields of the object own them, or one pod can't do what they ask.

Names and aliases as in SGLang 0.5.23 (sglang/srt/arg_groups/fields). The launcher refuses abbreviations, which SGLang
would take.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class RefusedFlag:
    """A flag with its aliases and kin, and what to do instead of passing it, or why not."""

    flags: tuple[str, ...]
    remedy: str

    @property
    def pattern(self) -> str:
        """Regular expression of an item of `extraArgs` that passes it, for Python and for CEL (RE2)."""
        return f"^({'|'.join(self.flags)})(=|$)"

    @property
    def message(self) -> str:
        """What a user is told who passes it."""
        return f"spec.server.extraArgs must not contain {', '.join(self.flags)}: {self.remedy}"


REFUSED_FLAGS = (
    RefusedFlag(("--config",), "what a file sets can't be compared with the fields; give its arguments one by one"),
    RefusedFlag(("--help", "-h"), "SGLang would print it and end"),
    RefusedFlag(("--model-path", "--model"), "use spec.model.source and spec.model.path"),
    RefusedFlag(("--revision",), "use spec.model.source.huggingFace.revision"),
    RefusedFlag(("--served-model-name",), "use spec.model.name"),
    RefusedFlag(("--quantization",), "use spec.model.quantization"),
    RefusedFlag(("--tp-size", "--tensor-parallel-size", "--tp"), "use spec.gpus.tensorParallelSize"),
    RefusedFlag(("--base-gpu-id", "--gpu-id-step"), "the container sees the GPUs of spec.gpus alone, and uses all"),
    RefusedFlag(
        ("--pp-size", "--pipeline-parallel-size", "--dp-size", "--data-parallel-size"),
        "a pod has the GPUs of one tensor-parallel group; use spec.gpus for its size, spec.replicas for copies",
    ),
    RefusedFlag(
        ("--attn-dp-size", "--attention-data-parallel-size", "--enable-dp-attention"),
        "not supported: ranks with different tokens would make rank 0's figures wrong for the pod; use spec.replicas",
    ),
    RefusedFlag(
        (
            "--dcp-size",
            "--decode-context-parallel-size",
            "--attn-cp-size",
            "--attention-context-parallel-size",
            "--enable-prefill-cp",
            "--enable-kv-cache-sharding",
        ),
        "not supported: every rank must hold the whole context, which spec.attention.kvCast speaks of",
    ),
    RefusedFlag(
        ("--nnodes", "--node-rank", "--dist-init-addr", "--nccl-init-addr", "--use-ray"),
        "not supported: a copy is one pod on one node, with the GPUs of spec.gpus",
    ),
    RefusedFlag(
        (
            "--disaggregation-mode",
            "--encoder-only",
            "--language-only",
            "--decoupled-spec-role",
            "--elastic-ep-join-mode",
        ),
        "not supported: each pod of spec.replicas serves whole requests by itself",
    ),
    RefusedFlag(
        (
            "--attention-backend",
            "--decode-attention-backend",
            "--prefill-attention-backend",
            "--speculative-draft-attention-backend",
        ),
        "use spec.attention.algorithm",
    ),
    RefusedFlag(("--json-model-override-args",), "spec.attention.algorithm sets it"),
    RefusedFlag(("--kv-cache-dtype", "--speculative-draft-kv-cache-dtype"), "use spec.kvCache.dtype"),
    RefusedFlag(("--max-total-tokens",), "use spec.kvCache.maxTokens"),
    RefusedFlag(("--mem-fraction-static",), "use spec.kvCache.memoryFraction"),
    RefusedFlag(("--context-length",), "use spec.contextLength"),
    RefusedFlag(("--max-running-requests",), "use spec.maxRunningRequests"),
    RefusedFlag(
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
    RefusedFlag(("--tool-call-parser",), "use spec.server.toolCallParser"),
    RefusedFlag(("--reasoning-parser",), "use spec.server.reasoningParser"),
    RefusedFlag(("--host", "--port"), "use spec.server.port"),
    RefusedFlag(
        ("--ssl-keyfile", "--ssl-certfile", "--ssl-ca-certs", "--ssl-keyfile-password", "--enable-ssl-refresh"),
        "probes and the Service speak plain HTTP; end TLS in an Ingress, a Gateway or a mesh",
    ),
    RefusedFlag(("--grpc-mode", "--smg-grpc-mode"), "probes and the Service speak HTTP"),
    RefusedFlag(
        ("--api-key", "--admin-api-key"),
        "SGLang logs its arguments; use spec.server.apiKeySecretRef, which keeps the key out of the logs",
    ),
    RefusedFlag(("--enable-metrics",), "metrics are always on"),
    RefusedFlag(("--skip-server-warmup",), "a pod is ready only after a generation; spec.startup.timeout bounds it"),
)


def refusal(arguments: Iterable[str]) -> str | None:
    """Why these `extraArgs` are not passed on; None where nothing stands against them.

    The API server refuses the same ones. An older CustomResourceDefinition lets some of them pass.
    """
    for argument in arguments:
        for refused in REFUSED_FLAGS:
            if re.match(refused.pattern, argument):
                return refused.message
    return None
