"""`status` of a GLM5Deployment: its schema. Values are made in glm5_operator.reconcile."""

from typing import Annotated, Literal

from pydantic import Field

from .base import ApiModel

Text = Annotated[str, Field(max_length=4096)]


class Condition(ApiModel):
    """One aspect of the object's state, in the standard form."""

    type: str = Field(
        description="Available, Progressing, Degraded, BackendVerified, DecodeHealthy, PodTemplateMerged, "
        "ScalingActive or FitsGPUs."
    )
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it holds.")
    observed_generation: int = Field(default=0, ge=0, description="Generation of the spec that this speaks of.")
    last_transition_time: str = Field(
        description="When status last changed.", json_schema_extra={"format": "date-time"}
    )
    reason: str = Field(description="One CamelCase word for programs.")
    message: str = Field(max_length=32768, description="A sentence for people: what is so, and what to do about it.")


class Backend(ApiModel):
    """What the pods report about the attention backend in use."""

    kv_cast: str = Field(default="", description="Cast mode in use.")
    kernel: str = Field(default="", description="Kernel in use.")
    version: str = Field(default="", description="Version of this project's backend package.")
    sglang: str = Field(default="", description="Version of SGLang.")
    flashinfer: str = Field(default="", description="Version of FlashInfer.")
    torch: str = Field(default="", description="Version of PyTorch.")
    gpu: str = Field(default="", description="Device, as its driver names it.")


class Decode(ApiModel):
    """Decode figures, rounded for people. For exact ones read the metrics."""

    tokens_per_second: str = Field(default="", description="Decode tokens a second, summed over the pods.")
    step: str = Field(default="", description="Mean GPU time of one decode step in the slowest pod.")
    cast: str = Field(default="", description="Time that the step spends casting KV rows, and its share of the step.")
    batch_size: str = Field(default="", description="Mean requests in a decode step.")
    time: str | None = Field(
        default=None, description="When these figures last changed.", json_schema_extra={"format": "date-time"}
    )


class ModelStatus(ApiModel):
    """What is known of the model's files."""

    source: str = Field(description="Repository and revision on the hub.")
    weight_bytes: int = Field(ge=0, description="Bytes of its weights, as the hub told at the download.")


class PodStatus(ApiModel):
    """A pod in a line."""

    name: str = Field(description="Its name.")
    node: str = Field(default="", description="Node it runs on.")
    phase: str = Field(default="", description="Ready, Starting, Waiting, Failing, Draining or Pending.")
    reason: str = Field(default="", description="Why it is not Ready, in one word.")
    message: Text = Field(default="", description="Why it is not Ready, in a sentence.")
    restarts: int = Field(default=0, ge=0, description="Restarts of the server's container.")


class GLM5DeploymentStatus(ApiModel):
    """What the server is."""

    observed_generation: int = Field(default=0, ge=0, description="Generation of the spec that this status speaks of.")
    replicas: int = Field(default=0, ge=0, description="Pods that exist.")
    ready_replicas: int = Field(default=0, ge=0, description="Pods that answer requests.")
    updated_replicas: int = Field(default=0, ge=0, description="Pods made from the current spec.")
    selector: str = Field(default="", description="Label selector of the pods, for autoscalers.")
    url: str = Field(default="", description="Address of the OpenAI-compatible API inside the cluster.")
    image: str = Field(default="", description="Server image in use.")
    ready: str = Field(default="", description="Ready pods of wanted pods.")
    state: str = Field(default="", description="The state in one word.")
    conditions: list[Condition] = Field(
        default_factory=list,
        max_length=16,
        description="Available, Progressing, Degraded, BackendVerified, DecodeHealthy; PodTemplateMerged and "
        "ScalingActive where the spec has podTemplate and autoscaling; FitsGPUs where no pod serves yet and the "
        "sizes of weights and GPUs are known.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    model: ModelStatus | None = Field(
        default=None, description="The model's files. Absent while their size is not known."
    )
    backend: Backend | None = Field(default=None, description="The attention backend, as the pods report it.")
    decode: Decode | None = Field(default=None, description="Decode figures. Absent while nothing is known.")
    pods: list[PodStatus] = Field(
        default_factory=list, max_length=100, description="The pods, those with trouble first; at most 100."
    )
