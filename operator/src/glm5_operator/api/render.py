"""The CustomResourceDefinition as YAML text."""

from typing import Any

import yaml

from .crd import custom_resource_definition


class _PlainDumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def to_yaml(*documents: Any) -> str:
    """YAML of the documents, in the order of their keys and without anchors."""
    return yaml.dump_all(documents, Dumper=_PlainDumper, sort_keys=False, width=110, allow_unicode=True)


def crd_yaml() -> str:
    """The CustomResourceDefinition as YAML."""
    return to_yaml(custom_resource_definition())
