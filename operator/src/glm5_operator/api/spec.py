"""`spec` of a GLM5Deployment."""

from typing import Any, Literal

from pydantic import ConfigDict, Field

from .base import ApiModel, Quantity, default_section, rule, rules
from .model import Model
from .pod import Autoscaling, DisruptionBudget, Drain, Gpus, KernelCache, Monitoring, Rollout, Server, Startup


class Attention(ApiModel):
    """How attention reads the KV cache."""

    algorithm: Literal["Dense", "Sparse"] = Field(
        default="Dense",
        description="Dense: MLA over all rows of the context, by this project's backend. Sparse: DeepSeek Sparse "
        "Attention as GLM-5 was trained, by SGLang's own kernels. Long-context quality is lower dense: a public "
        "measurement of GLM-5.1 gives 75.9 % dense against 89.3 % sparse (about 30 samples). Choose by measuring your "
        "own prompts.",
    )
    kv_cast: Literal["Never", "ActiveRows", "WholePool"] = Field(
        default="Never",
        description="What happens to FP8 rows before attention. Never: they are read as they are. ActiveRows: the rows "
        "in use are gathered and cast to BF16 in each layer. WholePool: the whole pool is cast in each layer, as stock "
        "SGLang does; for comparison only. With algorithm Sparse or a BF16 cache only Never.",
    )


class KvCache(ApiModel):
    """The pool of cached keys and values on each GPU."""

    dtype: Literal["fp8_e4m3", "bfloat16"] = Field(
        default="fp8_e4m3", description="Type of a cached value. fp8_e4m3 holds twice the tokens of bfloat16."
    )
    max_tokens: int | None = Field(
        default=None, ge=1, le=1000000000, description="Tokens in the pool. Left out, SGLang fills the GPU's memory."
    )
    memory_fraction: float | None = Field(
        default=None,
        ge=0.05,
        le=0.99,
        description="Part of the GPU's memory for weights and pool (--mem-fraction-static). Left out, SGLang's choice.",
    )


class SpeculativeDecoding(ApiModel):
    """Speculative decoding. Left out, each step makes one token."""

    algorithm: str = Field(
        default="NEXTN",
        pattern=r"^[A-Z0-9_]+$",
        max_length=32,
        description="SGLang's --speculative-algorithm. NEXTN uses GLM-5's own multi-token prediction layer.",
    )
    steps: int = Field(default=3, ge=1, le=32, description="Draft steps in each round.")
    top_k: int = Field(default=1, ge=1, le=64, description="Candidates kept in each draft step.")
    draft_tokens: int = Field(default=4, ge=2, le=256, description="Draft tokens that each round verifies.")
    draft_model_path: str = Field(
        default="",
        max_length=1024,
        description="Directory of a separate draft model below the source's root. NEXTN needs none.",
    )


class GLM5DeploymentSpec(ApiModel):
    """What the server should be. Only the model's source has no default."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "self.attention.kvCast == 'Never' || self.kvCache.dtype == 'fp8_e4m3'",
                "spec.attention.kvCast must be Never with a bfloat16 cache, which has nothing to cast: set kvCast: "
                "Never or spec.kvCache.dtype: fp8_e4m3",
            ),
            rule(
                "self.attention.kvCast == 'Never' || self.attention.algorithm == 'Dense'",
                "spec.attention.kvCast must be Never with algorithm Sparse, whose kernels read FP8 rows themselves: "
                "set kvCast: Never or algorithm: Dense",
            ),
        )
    )

    replicas: int = Field(
        default=1,
        ge=0,
        le=1000,
        description="Copies of the pod. 0 stops the server. kubectl scale and autoscalers write it through /scale; the "
        "operator never does.",
    )
    model: Model = Field(description="Which weights are served, and where they come from.")
    gpus: Gpus = default_section(Gpus, "The accelerators that one copy of the model gets.")
    attention: Attention = default_section(Attention, "How attention reads the KV cache.")
    kv_cache: KvCache = default_section(KvCache, "The pool of cached keys and values on each GPU.")
    context_length: int | None = Field(
        default=None, ge=1, le=100000000, description="Longest request in tokens. Left out, the model's own."
    )
    max_running_requests: int | None = Field(
        default=None, ge=1, le=100000, description="Requests decoded at one time. Left out, SGLang's choice."
    )
    speculative_decoding: SpeculativeDecoding | None = Field(
        default=None, description="Speculative decoding. Left out, each step makes one token."
    )
    server: Server = default_section(Server, "The container that runs SGLang.")
    shared_memory: Quantity = Field(
        default="64Gi",
        description="Limit of the memory-backed /dev/shm, which NCCL and SGLang's processes use. Counts as memory of "
        "the pod once written.",
    )
    kernel_cache: KernelCache = default_section(
        KernelCache, "Where kernels compiled at start are kept. Default: an emptyDir, which lasts as long as the pod."
    )
    startup: Startup = default_section(Startup, "How long a start may take.")
    drain: Drain = default_section(Drain, "How a pod that is to go ends its work.")
    rollout: Rollout = default_section(Rollout, "How pods are replaced when the spec changes.")
    disruption_budget: DisruptionBudget = default_section(
        DisruptionBudget,
        "Limits voluntary evictions. Made for replicas > 1 only: for one replica it would block every node drain.",
    )
    autoscaling: Autoscaling | None = Field(
        default=None,
        description="A HorizontalPodAutoscaler on this object's /scale. Needs an adapter that serves the metric. Left "
        "out, replicas stays as it is set.",
    )
    monitoring: Monitoring = default_section(Monitoring, "How Prometheus finds the pods.")
    pod_template: dict[str, Any] | None = Field(
        default=None,
        description="Anything else of a pod: metadata.labels, metadata.annotations and spec, merged into the generated "
        "pod template. Lists are merged by their keys (containers, volumes and env by name, ports by number, ...). The "
        "server's container is called `server`, the sidecar `exporter`. What would break the product (command, model "
        "mount, ports, probes) is kept as generated.",
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
    )
