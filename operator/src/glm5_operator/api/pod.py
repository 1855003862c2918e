"""The sections that shape the pod: GPUs, the server's container, caches, start, drain and rollout."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from .base import ApiModel, Duration, Name, Quantity, rule, rules
from .flags import REFUSED_FLAGS
from .model import AbsolutePath, SecretKeyRef


class Gpus(ApiModel):
    """The accelerators that one copy of the model gets."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "!has(self.tensorParallelSize) || self.tensorParallelSize <= self.count",
                "spec.gpus.tensorParallelSize is larger than spec.gpus.count: a rank needs a GPU of its own; "
                "raise count or lower tensorParallelSize",
            )
        )
    )

    count: int = Field(default=8, ge=1, le=64, description="GPUs that each pod asks for. All are on one node.")
    tensor_parallel_size: int | None = Field(
        default=None,
        ge=1,
        le=64,
        description="SGLang's --tp-size: ranks that share the model's weights. Left out, it equals count.",
    )
    resource_name: str = Field(
        default="nvidia.com/gpu",
        pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
        max_length=253,
        description="Extended resource that the device plugin announces, for example nvidia.com/gpu or a MIG profile.",
    )
    product: str = Field(
        default="",
        max_length=63,
        description="Only nodes whose label nvidia.com/gpu.product (set by GPU feature discovery) has this value, for "
        "example NVIDIA-H200. Left empty, any node with enough of the resource will do.",
    )


class EnvVar(ApiModel):
    """An environment variable of the server's container."""

    name: str = Field(min_length=1, max_length=256, pattern=r"^[-._a-zA-Z][-._a-zA-Z0-9]*$", description="Its name.")
    value: str | None = Field(default=None, max_length=32768, description="Its value.")
    value_from: dict[str, Any] | None = Field(
        default=None,
        description="A source for the value, as in a pod: secretKeyRef, configMapKeyRef, fieldRef or resourceFieldRef.",
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
    )


class LocalObjectReference(ApiModel):
    """An object of the same namespace."""

    name: Name = Field(description="Its name.")


class Resources(ApiModel):
    """CPU and memory of the server's container. GPUs are added from spec.gpus."""

    requests: dict[str, Quantity] = Field(
        default_factory=dict, max_length=16, description="What the scheduler reserves, for example cpu and memory."
    )
    limits: dict[str, Quantity] = Field(
        default_factory=dict,
        max_length=16,
        description="What the container may not exceed. Pages written to /dev/shm count as memory too.",
    )


class Server(ApiModel):
    """The container that runs SGLang."""

    image: str = Field(
        default="",
        max_length=1024,
        description="Image with SGLang and this project's backend. Left empty, the one set in the operator's chart.",
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(
        default="IfNotPresent", description="When the kubelet pulls the image."
    )
    image_pull_secrets: list[LocalObjectReference] = Field(
        default_factory=list, max_length=16, description="Secrets with registry credentials, in the same namespace."
    )
    port: int = Field(
        default=30000,
        ge=1024,
        le=65535,
        description="Port of the OpenAI-compatible API, in the container and on the Service.",
        json_schema_extra=rules(
            rule("self != 9408", "spec.server.port: 9408 belongs to the exporter in the same pod; choose another port")
        ),
    )
    service_type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = Field(
        default="ClusterIP", description="Type of the Service in front of the pods."
    )
    extra_args: list[Annotated[str, Field(min_length=1, max_length=4096)]] = Field(
        default_factory=list,
        max_length=64,
        description='Further SGLang arguments, one word an item: ["--chunked-prefill-size", "8192"]. Arguments that a '
        "field of this object sets, or that one pod can't carry out, are refused.",
        json_schema_extra=rules(
            *(rule(f"!self.exists(a, a.matches('{refused.pattern}'))", refused.message) for refused in REFUSED_FLAGS)
        ),
    )
    env: list[EnvVar] = Field(
        default_factory=list,
        max_length=64,
        description="Environment of the server's container. GLM5_KV_CAST, GLM5_RUN_DIR and GLM5_API_KEY_FILE are set "
        "from fields and can't be given here.",
        json_schema_extra=rules(
            rule(
                "!self.exists(e, e.name in ['GLM5_KV_CAST', 'GLM5_RUN_DIR', 'GLM5_API_KEY_FILE'])",
                "spec.server.env must not set GLM5_KV_CAST (use spec.attention.kvCast), GLM5_API_KEY_FILE (use "
                "spec.server.apiKeySecretRef) or GLM5_RUN_DIR (fixed)",
            ),
            **{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    )
    api_key_secret_ref: SecretKeyRef | None = Field(
        default=None,
        description="Secret key that clients must send as a bearer token. It is mounted as a file: never an argument, "
        "which SGLang would log.",
    )
    resources: Resources = Field(
        default_factory=Resources,
        description="CPU and memory of the server's container.",
        json_schema_extra={"default": {}},
    )
    tool_call_parser: str = Field(
        default="glm47",
        pattern=r"^[A-Za-z0-9_.-]*$",
        max_length=64,
        description="SGLang's --tool-call-parser. An empty text switches tool calls off.",
    )
    reasoning_parser: str = Field(
        default="glm45",
        pattern=r"^[A-Za-z0-9_.-]*$",
        max_length=64,
        description="SGLang's --reasoning-parser. An empty text leaves reasoning in the answer.",
    )


class CacheClaim(ApiModel):
    """A volume that the pods write to."""

    claim_name: Name = Field(
        description="Name of a PersistentVolumeClaim in the same namespace, mounted writable. Pods on several nodes "
        "share it only if it is ReadWriteMany."
    )


class CacheDirectory(ApiModel):
    """A directory of each node that the pods write to."""

    path: AbsolutePath = Field(
        description="Directory on the node, made where it is missing. User and group 65532 must be able to write to it."
    )


class KernelCache(ApiModel):
    """Where kernels compiled at start are kept."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "!(has(self.persistentVolumeClaim) && has(self.hostPath))",
                "give at most one of persistentVolumeClaim and hostPath in spec.kernelCache; with neither, an emptyDir "
                "is used",
            )
        )
    )

    persistent_volume_claim: CacheClaim | None = Field(
        default=None, description="A claim that outlives the pod: the next start compiles nothing anew."
    )
    host_path: CacheDirectory | None = Field(
        default=None, description="A directory of the node. Only if the chart was installed with allowHostPath=true."
    )
    size_limit: Quantity = Field(
        default="16Gi", description="Limit of the emptyDir that is used when neither source is given."
    )


class Startup(ApiModel):
    """How long a start may take."""

    timeout: Duration = Field(
        default="2h",
        description="Time from container start to the first answer, after which the kubelet restarts the container. "
        "It covers reading the weights, compiling kernels and SGLang's own warm-up.",
        json_schema_extra=rules(
            rule(
                "duration(self) >= duration('1m') && duration(self) <= duration('24h')",
                "spec.startup.timeout must lie between 1m and 24h",
            )
        ),
    )


class Drain(ApiModel):
    """How a pod that is to go ends its work."""

    grace_period: Duration = Field(
        default="10m",
        description="Time that generations in flight have to finish when a pod is replaced, scaled away or evicted. "
        "SGLang refuses new requests meanwhile. What still runs after that is cut off.",
        json_schema_extra=rules(
            rule(
                "duration(self) >= duration('1s') && duration(self) <= duration('24h')",
                "spec.drain.gracePeriod must lie between 1s and 24h",
            )
        ),
    )


class Rollout(ApiModel):
    """How pods are replaced."""

    surge: bool = Field(
        default=False,
        description="False: the old pod ends before the new one starts, since a second set of GPUs is rarely free. "
        "True: the new pod starts first; it needs as many free GPUs again, or it waits for ever.",
    )


class DisruptionBudget(ApiModel):
    """A PodDisruptionBudget for the pods."""

    max_unavailable: int = Field(
        default=1, ge=1, le=1000, description="Pods that node drains may take away at one time."
    )


class Monitoring(ApiModel):
    """How Prometheus finds the pods."""

    pod_monitor: Literal["Auto", "Always", "Never"] = Field(
        default="Auto",
        description="Whether a PodMonitor of the Prometheus operator is made. Auto: if the cluster has that API.",
    )
    labels: dict[str, Annotated[str, Field(max_length=63)]] = Field(
        default_factory=dict,
        max_length=32,
        description="Labels of the PodMonitor, for a Prometheus that selects monitors by label.",
    )


class Autoscaling(ApiModel):
    """A HorizontalPodAutoscaler that scales this object."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "self.minReplicas <= self.maxReplicas",
                "spec.autoscaling.minReplicas is larger than maxReplicas: lower it or raise maxReplicas",
            ),
            rule(
                "has(self.targetTokensPerSecond) != has(self.targetQueueLength)",
                "give exactly one of targetTokensPerSecond and targetQueueLength in spec.autoscaling",
            ),
        )
    )

    min_replicas: int = Field(default=1, ge=1, le=1000, description="Never fewer pods than this.")
    max_replicas: int = Field(ge=1, le=1000, description="Never more pods than this.")
    target_tokens_per_second: int | None = Field(
        default=None,
        ge=1,
        le=1000000,
        description="Decode tokens a second that each pod should carry (metric glm5_decode_tokens_per_second).",
    )
    target_queue_length: int | None = Field(
        default=None,
        ge=1,
        le=100000,
        description="Waiting requests that each pod should carry (SGLang's metric sglang:num_queue_reqs).",
    )
