"""What all models of the API share: camelCase names, rules in CEL, quantities and durations."""

import re
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


class ApiModel(BaseModel):
    """A part of the object. Unknown fields are ignored: the CRD may be newer than the operator that reads it."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore")


def rule(cel: str, message: str, *, field: str = "") -> dict[str, str]:
    """One validation rule that the API server evaluates.

    `message` names the field and the remedy. `field` (a path such as `.kvCast`) is where the refusal points.
    """
    made = {"rule": cel, "message": message, "reason": "FieldValueInvalid"}
    if field:
        made["fieldPath"] = field
    return made


def rules(*made: dict[str, str], **extra: Any) -> dict[str, Any]:
    """The `json_schema_extra` of a model or field that carries these rules."""
    return {"x-kubernetes-validations": list(made), **extra}


def default_section(model: type[ApiModel], description: str) -> Any:
    """A field whose defaults the API server fills in even where the whole section is left out."""
    return Field(default_factory=model, description=description, json_schema_extra={"default": {}})


# As apimachinery's resource.Quantity parses it.
QUANTITY_PATTERN = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
Quantity = Annotated[
    int | str,
    Field(
        json_schema_extra={
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": QUANTITY_PATTERN,
        }
    ),
]

_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")
Duration = Annotated[str, Field(pattern=r"^([0-9]+h)?([0-9]+m)?([0-9]+s)?$", min_length=2, max_length=16)]

Name = Annotated[str, Field(min_length=1, max_length=253)]


def seconds(duration: str) -> int:
    """Seconds in a duration such as `1h30m`, `10m` or `45s`.

    Raises ValueError where the text is no such duration.
    """
    found = _DURATION.fullmatch(duration)
    if not duration or found is None:
        raise ValueError(f"{duration!r} is not a duration such as 2h, 10m or 45s")
    hours, minutes, secs = (int(part or 0) for part in found.groups())
    return hours * 3600 + minutes * 60 + secs
