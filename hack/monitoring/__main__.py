"""Write all generated files of monitoring, or with --check say which are out of date."""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from .decode import decode_dashboard
from .fleet import fleet_dashboard
from .operator import operator_dashboard
from .reference import metrics_reference

ROOT = Path(__file__).resolve().parents[2]
CHART = "charts/glm5-operator"
RULES = ROOT / CHART / "rules/glm5.yaml"
DASHBOARDS = {"glm5-decode": decode_dashboard, "glm5-fleet": fleet_dashboard, "glm5-operator": operator_dashboard}
NOTE = "# Made by `make generate`: for people without Helm, who apply it to the namespace that their {} looks at.\n"


def prometheus_rule() -> str:
    """Return the rules as an object for the Prometheus operator."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    rule = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "glm5"},
        "spec": {"groups": groups},
    }
    return NOTE.format("Prometheus") + yaml.safe_dump(rule, sort_keys=False, width=120)


def dashboard_config_maps(dashboards: Mapping[str, str]) -> str:
    """Return the dashboards as ConfigMaps with the label that Grafana's sidecar looks for."""
    objects: list[dict[str, Any]] = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "labels": {"grafana_dashboard": "1"}},
            "data": {f"{name}.json": text},
        }
        for name, text in dashboards.items()
    ]
    return NOTE.format("Grafana") + yaml.safe_dump_all(objects, sort_keys=False, width=120)


def generated_files() -> Mapping[str, str]:
    """Return the content of every generated file by its path in the repository."""
    dashboards = {name: json.dumps(make(), indent=1) + "\n" for name, make in DASHBOARDS.items()}
    return {
        "docs/metrics.md": metrics_reference(),
        "manifests/monitoring/prometheus-rule.yaml": prometheus_rule(),
        "manifests/monitoring/dashboards.yaml": dashboard_config_maps(dashboards),
        **{f"{CHART}/dashboards/{name}.json": text for name, text in dashboards.items()},
    }


def main() -> int:
    """Write or check the files; return 1 if a checked one is out of date."""
    parser = argparse.ArgumentParser(prog="python -m monitoring", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, list files that are out of date")
    check = parser.parse_args().check
    stale = []
    for name, content in generated_files().items():
        path = ROOT / name
        if path.exists() and path.read_text() == content:
            continue
        stale.append(name)
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
    print("\n".join(f"{'out of date' if check else 'wrote'}: {name}" for name in stale) or "monitoring: up to date")
    return 1 if stale and check else 0


if __name__ == "__main__":
    sys.exit(main())
