"""The recording rules and alerts, as Prometheus' own tool sees them."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
RULES = ROOT / "charts/glm5-operator/rules/glm5.yaml"
CASES = sorted(Path(__file__).parent.glob("rules/*.test.yaml"))
ALERTS = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"] if rule.get("alert")]


def test_prometheus_accepts_the_rules(promtool):
    result = subprocess.run([promtool, "check", "rules", RULES], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.name)
def test_alerts_fire_when_they_should_and_stay_quiet_otherwise(promtool, case):
    result = subprocess.run([promtool, "test", "rules", case], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("alert", ALERTS, ids=lambda rule: rule["alert"])
def test_every_alert_fires_in_a_case(alert):
    text = "".join(case.read_text() for case in CASES)
    assert re.search(rf'alertname(="|: ){alert["alert"]}\b', text)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda rule: rule["alert"])
def test_every_alert_says_how_bad_it_is_what_it_means_and_what_to_do(alert):
    assert alert["labels"]["severity"] in ("warning", "critical")
    assert {"summary", "description", "runbook_url"} == set(alert["annotations"])
    runbook = (ROOT / alert["annotations"]["runbook_url"]).read_text()
    headings = re.findall(r"^#+ (.*)$", runbook, flags=re.MULTILINE)
    assert headings == [alert["alert"], "What it means", "How to look", "What to do"]


def test_no_runbook_is_left_over():
    names = {path.stem for path in (ROOT / "docs/runbooks").glob("*.md")}
    assert names == {alert["alert"] for alert in ALERTS}
