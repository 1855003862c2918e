"""The CustomResourceDefinition, as the API server and `kubectl explain` see it."""

import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest

from glm5_operator.api.base import seconds
from glm5_operator.api.crd import custom_resource_definition
from glm5_operator.api.render import crd_yaml

ROOT = Path(__file__).resolve().parents[3]
VERSION = custom_resource_definition()["spec"]["versions"][0]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]


def fields(node, path=""):
    for name, child in node.get("properties", {}).items():
        yield f"{path}.{name}", child
        yield from fields(child, f"{path}.{name}")
    if "items" in node:
        yield f"{path}[]", node["items"]
        yield from fields(node["items"], f"{path}[]")


def field(path):
    return dict(fields(SCHEMA))[path]


def test_generated_files_are_current():
    done = subprocess.run(
        [sys.executable, ROOT / "hack" / "generate.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"run `make generate`:\n{done.stdout}{done.stderr}"


def test_every_field_of_spec_and_status_is_described():
    described = [(path, node) for path, node in fields(SCHEMA) if path.startswith((".spec", ".status"))]
    bare = [path for path, node in described if not path.endswith("[]") and not node.get("description")]
    assert bare == []
    assert len(described) > 80


def test_the_crd_fits_helm_and_client_side_apply():
    assert len(crd_yaml()) < 200_000


def test_the_schema_is_structural_without_references_or_nulls():
    text = crd_yaml()
    assert "$ref" not in text
    assert "type: 'null'" not in text
    assert not re.search(r"^\s+title:", text, re.MULTILINE)


def test_only_the_model_source_is_required():
    required = {
        (path, name)
        for path, node in itertools.chain([("", SCHEMA)], fields(SCHEMA))
        for name in node.get("required", [])
        if path in ("", ".spec", ".spec.model")
    }
    assert required == {("", "spec"), (".spec", "model"), (".spec.model", "source")}


@pytest.mark.parametrize(
    ("path", "default"),
    [
        (".spec.replicas", 1),
        (".spec.gpus.count", 8),
        (".spec.gpus.resourceName", "nvidia.com/gpu"),
        (".spec.attention.algorithm", "Dense"),
        (".spec.attention.kvCast", "Never"),
        (".spec.kvCache.dtype", "fp8_e4m3"),
        (".spec.server.port", 30000),
        (".spec.sharedMemory", "64Gi"),
        (".spec.startup.timeout", "2h"),
        (".spec.drain.gracePeriod", "10m"),
        (".spec.rollout.surge", False),
        (".spec.monitoring.podMonitor", "Auto"),
        (".spec.server.toolCallParser", "glm47"),
    ],
)
def test_the_api_server_fills_in_defaults(path, default):
    assert field(path)["default"] == default
    parts = path.split(".")[2:-1]
    for depth in range(1, len(parts) + 1):
        assert field(".spec." + ".".join(parts[:depth]))["default"] == {}


def test_status_has_no_defaults_which_the_server_would_fill_in():
    assert [path for path, node in fields(SCHEMA) if path.startswith(".status") and "default" in node] == []


def test_every_rule_names_the_field_in_its_message():
    messages = [
        entry["message"]
        for _, node in [("", SCHEMA), *fields(SCHEMA)]
        for entry in node.get("x-kubernetes-validations", [])
    ]
    assert len(messages) > 20
    assert [message for message in messages if "spec." not in message and "metadata.name" not in message] == []


def test_it_scales_and_is_listed_with_short_name_and_category():
    names = custom_resource_definition()["spec"]["names"]
    assert names["shortNames"] == ["glm5"]
    assert names["categories"] == ["all"]
    assert VERSION["subresources"]["scale"]["labelSelectorPath"] == ".status.selector"
    assert [column["name"] for column in VERSION["additionalPrinterColumns"] if "priority" not in column] == [
        "Ready",
        "KvCast",
        "Tok/s",
        "Cast",
        "Status",
        "Age",
    ]


@pytest.mark.parametrize(("text", "expected"), [("2h", 7200), ("1h30m", 5400), ("10m", 600), ("45s", 45)])
def test_durations_are_read_as_people_write_them(text, expected):
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "10", "1d", "m", "5m1h"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ValueError, match="not a duration"):
        seconds(text)
