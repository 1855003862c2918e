"""The dashboards, as Grafana and the people in front of it need them."""

import re
from itertools import combinations
from pathlib import Path

import promql_parser
import pytest
import yaml

from glm5_mla.exporter.metrics import METRICS
from monitoring.__main__ import ROOT, generated_files
from monitoring.decode import decode_dashboard
from monitoring.fleet import fleet_dashboard
from monitoring.operator import operator_dashboard
from monitoring.reference import metrics_reference

DASHBOARDS = [decode_dashboard(), fleet_dashboard(), operator_dashboard()]
PANELS = [panel for board in DASHBOARDS for panel in board["panels"] if panel["type"] != "row"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]
QUERIES += [annotation["expr"] for board in DASHBOARDS for annotation in board["annotations"]["list"]]
SERIES = {
    metric.name + suffix
    for metric in METRICS
    for suffix in {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}.get(metric.kind, ("",))
}
OPERATOR_SOURCE = Path(ROOT / "operator/src/glm5_operator/metrics.py")


def title(panel: dict) -> str:
    return panel["title"]


def concrete(query: str) -> str:
    """Put values in the place of Grafana's variables."""
    return query.replace("$__rate_interval", "1m").replace("$__interval", "15s").replace("$__range", "1h")


@pytest.mark.parametrize("board", DASHBOARDS, ids=title)
def test_a_dashboard_has_a_stable_short_uid_a_tag_and_a_link_to_its_sisters(board):
    assert re.fullmatch(r"glm5-[a-z]+", board["uid"])
    assert board["tags"] == ["glm5"]
    assert board["links"][0]["tags"] == ["glm5"]
    assert board["graphTooltip"] == 1, "a crosshair shared by all panels"


@pytest.mark.parametrize("board", DASHBOARDS, ids=title)
def test_variables_choose_several_values_and_match_everything_at_the_start(board):
    source, *variables = board["templating"]["list"]
    assert (source["name"], source["query"]) == ("datasource", "prometheus")
    for variable in variables:
        assert variable["multi"]
        assert variable["includeAll"]
        assert variable["allValue"] == ".*"
        assert variable["refresh"] == 2


@pytest.mark.parametrize("board", DASHBOARDS, ids=title)
def test_panels_lie_within_24_columns_and_do_not_overlap(board):
    positions = [panel["gridPos"] for panel in board["panels"]]
    assert all(p["x"] >= 0 and p["x"] + p["w"] <= 24 for p in positions)
    for a, b in combinations(positions, 2):
        apart = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"] or a["y"] + a["h"] <= b["y"]
        assert apart or b["y"] + b["h"] <= a["y"], (a, b)
    assert len({panel["id"] for panel in board["panels"]}) == len(positions)


@pytest.mark.parametrize("panel", PANELS, ids=title)
def test_a_panel_tells_what_it_shows_in_which_unit_and_from_the_chosen_source(panel):
    assert re.fullmatch(r"[A-Z0-9].{18,}[.)]", panel["description"], flags=re.DOTALL)
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["datasource"]["uid"] == "${datasource}"
    assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_is_promql(query):
    promql_parser.parse(concrete(query))


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_asks_for_series_that_exist(query):
    ours = set(re.findall(r"(?<!:)\bglm5_(?!operator_|deployment_)\w+", query))
    assert ours <= SERIES
    operator_s = {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in
                  re.findall(r"\bglm5_(?:operator|deployment)_\w+", query)}  # fmt: skip
    assert all(f'"{name}"' in OPERATOR_SOURCE.read_text() for name in operator_s)


def test_alerts_and_rules_ask_for_series_that_exist():
    groups = yaml.safe_load((ROOT / "charts/glm5-operator/rules/glm5.yaml").read_text())["groups"]
    queries = [rule["expr"] for group in groups for rule in group["rules"]]
    assert len(queries) > 20
    for query in queries:
        ours = set(re.findall(r"(?<!:)\bglm5_(?!operator_|deployment_)\w+(?!:)", query))
        assert ours <= SERIES, query


def test_dashboards_use_recorded_series_that_the_rules_record():
    groups = yaml.safe_load((ROOT / "charts/glm5-operator/rules/glm5.yaml").read_text())["groups"]
    recorded = {rule["record"] for group in groups for rule in group["rules"] if "record" in rule}
    used = {name for query in QUERIES for name in re.findall(r"\b[a-z]+:glm5_[a-z0-9_:]+", query)}
    assert used == {"gpu:glm5_pod:info"}
    assert used <= recorded


# From NVIDIA's lists of the DCGM exporter's counters and of DCGM's fields.
DCGM_FIELDS = {
    "DCGM_FI_DEV_FB_FREE",
    "DCGM_FI_DEV_FB_USED",
    "DCGM_FI_DEV_GPU_TEMP",
    "DCGM_FI_DEV_GPU_UTIL",
    "DCGM_FI_DEV_MEMORY_TEMP",
    "DCGM_FI_DEV_POWER_USAGE",
    "DCGM_FI_DEV_SM_CLOCK",
    "DCGM_FI_DEV_XID_ERRORS",
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
    "DCGM_FI_DEV_ROW_REMAP_FAILURE",
    "DCGM_FI_DEV_THERMAL_VIOLATION",
    "DCGM_FI_DEV_POWER_VIOLATION",
    "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
    "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
    "DCGM_FI_DEV_NVLINK_ERROR_DL_RECOVERY",
    "DCGM_FI_DEV_NVLINK_ERROR_DL_REPLAY",
}


def test_series_of_the_dcgm_exporter_have_its_names():
    rules = (ROOT / "charts/glm5-operator/rules/glm5.yaml").read_text()
    assert set(re.findall(r"DCGM_\w+", rules + " ".join(QUERIES))) == DCGM_FIELDS


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_the_reference_describes_every_metric(metric):
    assert f"| `{metric.name}` | {metric.kind} | {metric.unit} |" in metrics_reference()


@pytest.mark.parametrize(("name", "content"), generated_files().items(), ids=generated_files())
def test_generated_files_are_up_to_date(name, content):
    assert (ROOT / name).read_text() == content, "run `make generate`"
