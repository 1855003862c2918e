"""`spec.model`: which weights are served, and where they come from."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from .base import ApiModel, Name, rule, rules

AbsolutePath = Annotated[str, Field(pattern=r"^/", max_length=1024)]


class SecretKeyRef(ApiModel):
    """A key of a Secret in the object's own namespace."""

    name: Name = Field(description="Name of the Secret, in the same namespace.")
    key: Name = Field(description="Key within the Secret.")


class ClaimSource(ApiModel):
    """Weights that already lie on a volume."""

    claim_name: Name = Field(
        description="Name of a PersistentVolumeClaim in the same namespace that holds the weights. "
        "Mounted read-only, so one ReadOnlyMany or ReadWriteMany claim can feed several pods."
    )


class HostPathSource(ApiModel):
    """Weights in a directory of each node, such as a local NVMe disk."""

    path: AbsolutePath = Field(description="Directory on the node. It must exist on every node the pod may land on.")


class ImageSource(ApiModel):
    """Weights in an OCI image that the kubelet mounts as a volume."""

    reference: str = Field(
        min_length=1,
        max_length=1024,
        description="Image reference. Needs Kubernetes 1.33 with the ImageVolume feature, and containerd 2.1 or newer.",
    )
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(
        default="IfNotPresent", description="When the kubelet pulls the image."
    )


class HuggingFaceSource(ApiModel):
    """Weights downloaded once from a Hugging Face hub into a claim, then served from there."""

    repo: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$",
        max_length=256,
        description="Repository as `organisation/name`, for example `zai-org/GLM-5-FP8`.",
    )
    revision: str = Field(
        default="main",
        min_length=1,
        max_length=256,
        description="Branch, tag or commit. Pin a commit: a branch that moves would give two pods two models.",
    )
    token_secret_ref: SecretKeyRef | None = Field(
        default=None,
        description="Secret key that holds the hub's access token. Only for gated or private repositories.",
    )
    endpoint: str = Field(
        default="https://huggingface.co",
        pattern=r"^https?://[^\s]+$",
        max_length=512,
        description="Address of the hub, or of a mirror inside your network.",
    )
    cache_claim_name: Name = Field(
        description="PersistentVolumeClaim that keeps the files. A download that was cut off resumes; a finished one "
        "is not repeated. Use ReadWriteMany when several pods share it."
    )


class ModelSource(ApiModel):
    """Exactly one place where the weights come from."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "(has(self.persistentVolumeClaim) ? 1 : 0) + (has(self.hostPath) ? 1 : 0) + (has(self.image) ? 1 : 0)"
                " + (has(self.huggingFace) ? 1 : 0) == 1",
                "give exactly one of persistentVolumeClaim, hostPath, image or huggingFace in spec.model.source",
            )
        )
    )

    persistent_volume_claim: ClaimSource | None = Field(
        default=None, description="A claim that already holds the weights."
    )
    host_path: HostPathSource | None = Field(
        default=None,
        description="A directory of the node. Only if the operator's chart was installed with allowHostPath=true: "
        "a host path hands the node's files to whoever may create this object.",
    )
    image: ImageSource | None = Field(default=None, description="An OCI image that holds the weights.")
    hugging_face: HuggingFaceSource | None = Field(
        default=None, description="A hub repository, downloaded once into a claim before the server starts."
    )


class Model(ApiModel):
    """Which weights are served, and under which name."""

    name: str = Field(
        default="",
        max_length=253,
        description="Name that clients send as `model`. Left empty, it is the object's own name.",
    )
    source: ModelSource = Field(description="Where the weights come from: exactly one of the four sources.")
    path: str = Field(
        default="",
        max_length=1024,
        description="Directory below the source's root that holds config.json, for a volume with several models.",
        json_schema_extra=rules(
            rule(
                "!self.startsWith('/') && !self.split('/').exists(part, part == '..')",
                "spec.model.path is relative to the source's root: remove the leading '/' and any '..'",
            )
        ),
    )
    quantization: str = Field(
        default="",
        pattern=r"^[a-z0-9_-]*$",
        max_length=64,
        description="SGLang's --quantization, for example fp8 or modelopt_fp4. Left empty, SGLang reads it from the "
        "model's config.json, which is right for checkpoints that come quantized.",
    )
