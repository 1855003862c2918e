"""Panels and dashboards in one style, on top of Grafana's own typed builders."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from grafana_foundation_sdk.builders import common, dashboard, heatmap, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as common_model
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

DATASOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
TAG = "glm5"
COLUMNS = 24
VALUE_SIZE = 32
"""Size of a single number, in pixels: the longest ones still fit an eighth of a laptop's screen."""
SELECTOR = 'namespace=~"$namespace",deployment=~"$deployment",pod=~"$pod"'


def sglang(metric: str, where: str) -> str:
    """Return a selector of one of SGLang's series.

    Its client library writes ``sglang:name`` in one format and ``sglang_name`` in another, and which one a Prometheus
    asks for depends on its version.
    """
    return f'{{__name__=~"sglang[:_]{metric}",{where}}}'


GREEN, ORANGE, RED, BLUE, GREY = "green", "orange", "red", "blue", "#8e8e8e"


@dataclass(frozen=True)
class Query:
    """A PromQL expression and how its series are called."""

    expr: str
    legend: str = ""
    format: PromQueryFormat = PromQueryFormat.TIME_SERIES


@dataclass(frozen=True)
class Panel:
    """One panel: what it shows, in which unit, and a description for the person who looks at it."""

    title: str
    description: str
    unit: str
    queries: Sequence[Query]
    width: int = 8
    height: int = 8


@dataclass(frozen=True)
class Stat(Panel):
    """One number, coloured by ``thresholds``: (from, colour) pairs above the base colour.

    Asked for as it is now: over a range the last number would stay when its series has ended.
    """

    base: str = GREEN
    thresholds: Sequence[tuple[float, str]] = ()
    decimals: int | None = None
    no_value: str = "no data"
    width: int = 3
    height: int = 4


@dataclass(frozen=True)
class Series(Panel):
    """Lines over time."""

    minimum: float | None = 0
    maximum: float | None = None
    at_least: float | None = None
    """The axis reaches at least up to here: a series of zeros would else get one from 0 to 100."""
    stacked: bool = False
    limit: float | None = None
    """Draws a line at this value: where an alert's threshold lies."""
    colors: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Heatmap(Panel):
    """A histogram over time."""


@dataclass(frozen=True)
class Table(Panel):
    """Rows of label values; ``columns`` gives the shown ones, in order, as {field: title}; ``units`` by field."""

    columns: dict[str, str] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    words: dict[str, dict[str, tuple[str, str]]] = field(default_factory=dict)
    """What a column shows in the place of a value, and its colour, by field and value."""
    join: str | None = None
    """Label by which several queries are joined to one row."""
    width: int = 24


@dataclass(frozen=True)
class Row:
    """A titled row of panels."""

    title: str
    panels: Sequence[Panel]


def _target(query: Query, position: int, *, instant: bool) -> prometheus.Dataquery:
    target = prometheus.Dataquery().expr(query.expr).ref_id(chr(ord("A") + position)).datasource(DATASOURCE)
    target = target.legend_format(query.legend or "__auto").format(query.format)
    return target.instant() if instant else target.range()


def _thresholds(base: str, steps: Sequence[tuple[float, str]]) -> dashboard.ThresholdsConfig:
    levels = [model.Threshold(value=None, color=base), *(model.Threshold(value=v, color=c) for v, c in steps)]
    return dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(levels)


def _stat(panel: Stat) -> stat.Panel:
    built = (
        stat.Panel()
        .graph_mode(common_model.BigValueGraphMode.NONE)
        .color_mode(common_model.BigValueColorMode.VALUE)
        .justify_mode(common_model.BigValueJustifyMode.CENTER)
        .text_mode(common_model.BigValueTextMode.AUTO)
        .wide_layout(False)
        # Sized to fit, a short number would be drawn twice as large as the long one beside it.
        .text(common.VizTextDisplayOptions().value_size(VALUE_SIZE))
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
        .thresholds(_thresholds(panel.base, panel.thresholds))
        .no_value(panel.no_value)
    )
    return built if panel.decimals is None else built.decimals(panel.decimals)


def _series(panel: Series) -> timeseries.Panel:
    built = (
        timeseries.Panel()
        .line_width(1)
        .fill_opacity(60 if panel.stacked else 8)
        .show_points(common_model.VisibilityMode.NEVER)
        .span_nulls(False)
        .legend(
            common.VizLegendOptions()
            .display_mode(common_model.LegendDisplayMode.LIST)
            .placement(common_model.LegendPlacement.BOTTOM)
            .show_legend(True)
            .calcs(["lastNotNull"] if len(panel.queries) < 5 else [])
        )
        .tooltip(
            common.VizTooltipOptions()
            .mode(common_model.TooltipDisplayMode.MULTI)
            .sort(common_model.SortOrder.NONE if panel.stacked else common_model.SortOrder.DESCENDING)
        )
    )
    if panel.stacked:
        built = built.stacking(common.StackingConfig().mode(common_model.StackingMode.NORMAL).group("A"))
    if panel.minimum is not None:
        built = built.min(panel.minimum)
    if panel.maximum is not None:
        built = built.max(panel.maximum)
    if panel.at_least is not None:
        built = built.axis_soft_max(panel.at_least)
    if panel.limit is not None:
        built = built.thresholds(_thresholds("transparent", [(panel.limit, RED)])).thresholds_style(
            common.GraphThresholdsStyleConfig().mode(common_model.GraphThresholdsStyleMode.DASHED)
        )
    for name, color in panel.colors.items():
        fixed = {"mode": "fixed", "fixedColor": color}
        built = built.override_by_name(name, [model.DynamicConfigValue(id_val="color", value=fixed)])
    return built


def _heatmap(panel: Heatmap) -> heatmap.Panel:
    return (
        heatmap.Panel()
        .calculate(False)
        .y_axis(heatmap.YAxisConfig().unit(panel.unit))
        .color(heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Turbo").steps(64).exponent(0.5))
        .cell_gap(0)
        .show_legend()
        .show_y_histogram()
        .mode(common_model.TooltipDisplayMode.SINGLE)
    )


def _table(panel: Table) -> table.Panel:
    built = table.Panel().cell_height(common_model.TableCellHeight.SM).min_width(70)
    if panel.join:
        built = built.with_transformation(
            model.DataTransformerConfig(id_val="joinByField", options={"byField": panel.join, "mode": "outer"})
        )
    order = {name: position for position, name in enumerate(panel.columns)}
    built = built.with_transformation(
        model.DataTransformerConfig(id_val="filterFieldsByName", options={"include": {"names": list(panel.columns)}})
    ).with_transformation(
        model.DataTransformerConfig(
            id_val="organize", options={"indexByName": order, "renameByName": panel.columns, "excludeByName": {}}
        )
    )
    for name, unit in panel.units.items():
        properties = [model.DynamicConfigValue(id_val="unit", value=unit)]
        built = built.override_by_name(panel.columns[name], properties)
    for name, words in panel.words.items():
        mapping = {value: {"text": text, "color": color} for value, (text, color) in words.items()}
        properties = [
            model.DynamicConfigValue(id_val="mappings", value=[{"type": "value", "options": mapping}]),
            model.DynamicConfigValue(id_val="custom.align", value="left"),
            model.DynamicConfigValue(id_val="custom.cellOptions", value={"type": "color-text"}),
        ]
        built = built.override_by_name(panel.columns[name], properties)
    return built


_BUILDERS = {Stat: _stat, Series: _series, Heatmap: _heatmap, Table: _table}


def _build(panel: Panel, number: int, position: model.GridPos) -> Any:
    built = (
        _BUILDERS[type(panel)](panel)
        .id(number)
        .title(panel.title)
        .description(panel.description)
        .datasource(DATASOURCE)
        .unit(panel.unit)
        .grid_pos(position)
    )
    for index, query in enumerate(panel.queries):
        built = built.with_target(_target(query, index, instant=isinstance(panel, Stat | Table)))
    return built


def label_variable(name: str, label: str, query: str) -> dashboard.QueryVariable:
    """Return a variable that holds the values of a label; several may be chosen, and all are at the start."""
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(DATASOURCE)
        .query({"query": query, "refId": f"variable-{name}"})
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        # Also matches series without the label, as from a server that is scraped outside Kubernetes.
        .all_value(".*")
        .current(model.VariableOption(selected=True, text="All", value="$__all"))
    )


def build_dashboard(
    *,
    uid: str,
    title: str,
    description: str,
    rows: Sequence[Row],
    variables: Sequence[dashboard.QueryVariable],
    annotations: Sequence[dict[str, Any]] = (),
    refresh: str = "10s",
    since: str = "now-30m",
) -> dict[str, Any]:
    """Return a dashboard's JSON model, its panels laid out from left to right in rows of 24 columns."""
    built = (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags([TAG])
        .timezone("browser")
        .editable()
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .time(since, "now")
        .refresh(refresh)
        .link(
            dashboard.DashboardLink("GLM-5")
            .type(model.DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .as_dropdown(True)
            .include_vars(True)
            .keep_time(True)
        )
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for variable in variables:
        built = built.with_variable(variable)
    number, top = 1, 0
    for row in rows:
        built = built.with_row(dashboard.Row(row.title).id(number).grid_pos(model.GridPos(h=1, w=COLUMNS, x=0, y=top)))
        number, top, left, tallest = number + 1, top + 1, 0, 0
        for panel in row.panels:
            if left + panel.width > COLUMNS:
                top, left, tallest = top + tallest, 0, 0
            position = model.GridPos(h=panel.height, w=panel.width, x=left, y=top)
            built = built.with_panel(_build(panel, number, position))
            number, left, tallest = number + 1, left + panel.width, max(tallest, panel.height)
        top += tallest
    result: dict[str, Any] = json.loads(json.dumps(built.build(), cls=JSONEncoder))
    # The builder writes the fields of interval variables into all kinds; the schema knows them on that kind only.
    for variable in result["templating"]["list"]:
        for name in ("auto", "auto_min", "auto_count"):
            variable.pop(name, None)
    # The typed builder knows no query in an annotation; Grafana's Prometheus data source takes it beside the rest.
    result["annotations"] = {"list": list(annotations)}
    return result
