"""The CustomResourceDefinition, made from the pydantic models."""

from typing import Any

from pydantic import BaseModel

from . import names
from .base import rule
from .spec import GLM5DeploymentSpec
from .status import GLM5DeploymentStatus

# What pydantic writes and a structural schema does not know.
_DROPPED = ("title", "additionalProperties", "$defs")


def structural_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The model's schema in the form that the API server wants: no references, no nulls, defaults kept."""
    schema = model.model_json_schema(by_alias=True)
    return _structural(schema, schema.get("$defs", {}))


def _structural(node: dict[str, Any], defs: dict[str, Any]) -> dict[str, Any]:
    node = dict(node)
    if "$ref" in node:
        # A field's own description and default stand beside the reference and win.
        target = defs[node.pop("$ref").rsplit("/", 1)[1]]
        node = {**target, **node}
    if not node.get("x-kubernetes-int-or-string") and "anyOf" in node:
        options = [option for option in node.pop("anyOf") if option.get("type") != "null"]
        if len(options) != 1:
            raise ValueError(f"a field with several types can't be put into a CRD: {options}")
        return _structural({**options[0], **node}, defs)
    made: dict[str, Any] = {key: value for key, value in node.items() if key not in _DROPPED and key != "properties"}
    if made.get("default", ...) in (None, []):
        del made["default"]
    if "const" in made:
        made["enum"] = [made.pop("const")]
    if made.get("x-kubernetes-int-or-string"):
        made.pop("type", None)
    if node.get("type") == "object":
        _structural_object(made, node, defs)
    if "items" in node:
        made["items"] = _structural(node["items"], defs)
    return made


def _structural_object(made: dict[str, Any], node: dict[str, Any], defs: dict[str, Any]) -> None:
    if "properties" in node:
        made["properties"] = {name: _structural(child, defs) for name, child in node["properties"].items()}
    elif isinstance(node.get("additionalProperties"), dict) and node["additionalProperties"]:
        made["additionalProperties"] = _structural(node["additionalProperties"], defs)
    if made.get("default") == {} and "properties" not in made:
        del made["default"]
    if "maxLength" in made:  # pydantic counts a mapping's entries under this name in some versions
        made["maxProperties"] = made.pop("maxLength")


def _without_defaults(node: dict[str, Any]) -> dict[str, Any]:
    """A status says what is known: the API server must not fill in what was left out."""
    made = {key: value for key, value in node.items() if key != "default"}
    if "properties" in made:
        made["properties"] = {name: _without_defaults(child) for name, child in made["properties"].items()}
    if "items" in made:
        made["items"] = _without_defaults(made["items"])
    return made


def _column(name: str, path: str, description: str, kind: str = "string", *, wide: bool = False) -> dict[str, Any]:
    column: dict[str, Any] = {"name": name, "type": kind, "jsonPath": path, "description": description}
    if wide:
        column["priority"] = 1
    return column


PRINTER_COLUMNS = [
    _column("Ready", ".status.ready", "Ready pods of wanted pods."),
    _column("KvCast", ".spec.attention.kvCast", "What happens to FP8 rows before attention."),
    _column("Tok/s", ".status.decode.tokensPerSecond", "Decode tokens a second, summed over the pods."),
    _column("Cast", ".status.decode.cast", "Time of a step spent casting KV rows, and its share."),
    _column("Status", ".status.state", "The state in one word."),
    _column("Age", ".metadata.creationTimestamp", "Time since creation.", "date"),
    _column("Step", ".status.decode.step", "Mean GPU time of one decode step.", wide=True),
    _column("URL", ".status.url", "Address of the API inside the cluster.", wide=True),
    _column("Image", ".status.image", "Server image in use.", wide=True),
]


def custom_resource_definition() -> dict[str, Any]:
    """The CustomResourceDefinition of GLM5Deployment (Kubernetes 1.29 and newer)."""
    schema = {
        "type": "object",
        "description": "A GLM-5 server: SGLang with FP8 MLA attention on the GPUs of one node a copy.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": structural_schema(GLM5DeploymentSpec),
            "status": _without_defaults(structural_schema(GLM5DeploymentStatus)),
        },
        "x-kubernetes-validations": [
            rule(
                f"self.metadata.name.size() <= {names.MAX_NAME_LENGTH}"
                " && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
                f"metadata.name becomes the name of a Service: at most {names.MAX_NAME_LENGTH} characters, lower-case "
                "letters, digits and '-', starting with a letter",
            )
        ],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names.PLURAL}.{names.GROUP}"},
        "spec": {
            "group": names.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": names.KIND,
                "listKind": f"{names.KIND}List",
                "plural": names.PLURAL,
                "singular": names.SINGULAR,
                "shortNames": [names.SHORT_NAME],
                "categories": ["all"],
            },
            "versions": [
                {
                    "name": names.VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": PRINTER_COLUMNS,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.replicas",
                            "statusReplicasPath": ".status.replicas",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                }
            ],
        },
    }
