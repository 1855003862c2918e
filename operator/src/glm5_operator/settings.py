"""What the chart sets for the operator, read from the environment."""

import os
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

PREFIX = "GLM5_OPERATOR_"


class Settings(BaseModel):
    """Settings of one operator process."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    server_image: str = "glm5.local/glm5-server:0.1.0"
    """Server image of objects that name none."""

    allow_host_path: bool = False
    """Whether objects may mount directories of the node."""

    watch_namespaces: tuple[str, ...] = ()
    """Namespaces to look at; none means all."""

    namespace: str = "glm5-system"
    """Namespace that the operator runs in: the Lease lives there."""

    identity: str = "glm5-operator"
    """Name of this process in the Lease: the pod's name."""

    leader_election: bool = True
    """Whether to wait for the Lease before acting."""

    decode_read_seconds: float = Field(default=5.0, gt=0)
    """Time between two reads of the pods' decode figures."""

    decode_status_seconds: float = Field(default=30.0, ge=0)
    """Shortest time between two writes of decode figures to one object's status."""

    sweep_seconds: float = Field(default=300.0, gt=0)
    """Time between two passes over all objects, which find what no event told."""

    workers: int = Field(default=8, ge=1)
    """Objects reconciled at one time."""

    metrics_port: int = Field(default=8080, ge=0, le=65535)
    """Port of /metrics; 0 picks a free one."""

    health_port: int = Field(default=8081, ge=0, le=65535)
    """Port of /healthz and /readyz; 0 picks a free one."""

    @field_validator("watch_namespaces", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return tuple(name.strip() for name in value.split(",") if name.strip()) if isinstance(value, str) else value

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Settings":
        """Settings from `GLM5_OPERATOR_<FIELD>` variables; those not set keep their defaults.

        Raises ValueError that names the variable that is unknown or whose value can't be read.
        """
        given = {
            name.removeprefix(PREFIX).lower(): text for name, text in environment.items() if name.startswith(PREFIX)
        }
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"environment variable {PREFIX}{str(first['loc'][0]).upper()}: {first['msg']}") from None
