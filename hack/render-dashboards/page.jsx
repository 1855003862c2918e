// A dashboard's panels in the browser: series, single numbers and tables by Grafana's own components (@grafana/ui).
// The heat map is drawn here, because Grafana publishes no package with that panel.
import {
  FieldType,
  ThemeContext,
  createTheme,
  dateTime,
  getDisplayProcessor,
  standardTransformers,
  standardTransformersRegistry,
  toDataFrame,
  transformDataFrame,
} from "@grafana/data";
import { BigValue, GlobalStyles, PanelChrome, Table, TimeSeries } from "@grafana/ui";
import { useEffect, useRef } from "react";
import { createRoot } from "react-dom/client";
import { lastValueFrom } from "rxjs";
import chartStyle from "uplot/dist/uPlot.min.css";

const { dashboard, from, to, scrape, theme: mode } = window.settings;
const theme = createTheme({ colors: { mode } });
const CELL = { width: (window.innerWidth - 8) / 24, height: 38, gap: 8 };
const timeRange = { from: dateTime(from * 1000), to: dateTime(to * 1000), raw: { from: "", to: "" } };

standardTransformersRegistry.setInit(() =>
  [standardTransformers.joinByFieldTransformer, standardTransformers.filterFieldsByNameTransformer,
   standardTransformers.organizeFieldsTransformer].map((transformation) => ({
    id: transformation.id, name: transformation.name, transformation, editor: () => null,
  })),
);

const SERIES_DEFAULTS = {
  drawStyle: "line", lineInterpolation: "linear", lineWidth: 1, fillOpacity: 0, pointSize: 5, showPoints: "never",
  axisPlacement: "auto", axisLabel: "", axisColorMode: "text", axisGridShow: true, gradientMode: "none",
  scaleDistribution: { type: "linear" }, hideFrom: { legend: false, tooltip: false, viz: false },
  stacking: { mode: "none", group: "A" }, thresholdsStyle: { mode: "off" }, barAlignment: 0, spanNulls: false,
};

function expand(expr, step) {
  const rate = Math.max(step + scrape, 4 * scrape);
  let text = expr.replaceAll("$__rate_interval", `${rate}s`).replaceAll("$__interval", `${step}s`);
  for (const variable of dashboard.templating.list) {
    text = text.replaceAll(`$${variable.name}`, variable.allValue ?? ".*");
  }
  return text;
}

async function prometheus(path, parameters) {
  const answer = await (await fetch(`/api/v1/${path}?${new URLSearchParams(parameters)}`)).json();
  if (answer.status !== "success") throw new Error(answer.error);
  return answer.data.result;
}

function legend(format, labels) {
  if (format && format !== "__auto") return format.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, name) => labels[name] ?? "");
  return Object.entries(labels).map(([name, value]) => `${name}="${value}"`).join(", ") || "Value";
}

async function rangeFrames(target, width) {
  const step = Math.max(scrape, Math.ceil((to - from) / Math.max(width, 100)));
  const query = { query: expand(target.expr, step), start: from, end: to, step };
  const result = await prometheus("query_range", query);
  return result.map(({ metric, values }) => {
    const known = new Map(values.map(([time, value]) => [Math.round(time), Number(value)]));
    const times = [];
    for (let time = from; time <= to; time += step) times.push(Math.round(time));
    const read = (time) => known.get(time) ?? null;
    return toDataFrame({
      refId: target.refId,
      fields: [
        { name: "Time", type: FieldType.time, values: times.map((time) => time * 1000) },
        { name: "Value", type: FieldType.number, labels: metric, values: times.map(read).map((v) => (Number.isFinite(v) ? v : null)),
          config: { displayNameFromDS: legend(target.legendFormat, metric) } },
      ],
    });
  });
}

async function instantFrames(target) {
  const result = await prometheus("query", { query: expand(target.expr, scrape), time: to });
  return result.map(({ metric, value }) => toDataFrame({
    refId: target.refId,
    fields: [
      { name: "Time", type: FieldType.time, values: [to * 1000] },
      { name: "Value", type: FieldType.number, labels: metric, values: [Number(value[1])].map((v) => (Number.isFinite(v) ? v : null)) },
    ],
  }));
}

async function tableFrame(target, several) {
  const step = Math.max(scrape, Math.ceil((to - from) / 800));
  const result = await prometheus("query", { query: expand(target.expr, step), time: to });
  const names = [...new Set(result.flatMap(({ metric }) => Object.keys(metric)))];
  return toDataFrame({
    refId: target.refId,
    fields: [
      ...names.map((name) => ({ name, type: FieldType.string, values: result.map(({ metric }) => metric[name] ?? "") })),
      { name: several ? `Value #${target.refId}` : "Value", type: FieldType.number, values: result.map(({ value }) => Number(value[1])) },
    ],
  });
}

function configure(frame, panel, custom, colorMode, first) {
  frame.fields.forEach((field) => {
    if (field.type === FieldType.time) {
      field.display = getDisplayProcessor({ field, theme });
      return;
    }
    const { defaults, overrides } = panel.fieldConfig;
    const config = { color: { mode: colorMode }, ...defaults, ...field.config, custom: { ...custom, ...defaults.custom } };
    const name = field.config.displayName ?? field.config.displayNameFromDS ?? field.name;
    for (const { matcher, properties } of overrides) {
      if (matcher.options !== name) continue;
      for (const { id, value } of properties) {
        if (id.startsWith("custom.")) config.custom[id.slice("custom.".length)] = value;
        else config[id] = value;
      }
    }
    field.config = field.type === FieldType.number ? config : { ...field.config, custom: config.custom };
    field.state = { seriesIndex: first, displayName: field.config.displayNameFromDS ?? field.config.displayName };
    field.display = getDisplayProcessor({ field, theme });
  });
  return frame;
}

function Heat({ frames, width, height, unit }) {
  const canvas = useRef(null);
  useEffect(() => {
    const rows = frames
      .map((frame) => ({ bound: Number(frame.fields[1].labels.le.replace("+Inf", "Infinity")), values: frame.fields[1].values }))
      .sort((a, b) => a.bound - b.bound);
    const counts = rows.map((row, index) => row.values.map((v, t) => (v === null ? 0 : Math.max(0, v - (index ? (rows[index - 1].values[t] ?? 0) : 0)))));
    const used = counts.map((row, index) => [index, Math.max(...row)]).filter(([, most]) => most > 0).map(([index]) => index);
    if (!used.length) return;
    const low = Math.max(0, Math.min(...used) - 1), high = Math.min(rows.length - 1, Math.max(...used) + 1);
    const most = Math.max(...counts.flat()), context = canvas.current.getContext("2d"), left = 64, bottom = 20;
    const display = getDisplayProcessor({ field: { type: FieldType.number, config: { unit } }, theme });
    const cell = { w: (width - left) / counts[0].length, h: (height - bottom) / (high - low + 1) };
    context.font = "11px Inter, sans-serif";
    context.fillStyle = theme.colors.text.primary;
    for (let row = low; row <= high; row += 1) {
      const y = height - bottom - (row - low + 1) * cell.h;
      counts[row].forEach((count, column) => {
        if (!count) return;
        context.fillStyle = `hsl(${260 - 260 * Math.sqrt(count / most)}, 85%, 52%)`;
        context.fillRect(left + column * cell.w, y, cell.w + 0.5, cell.h - 1);
      });
      const { text, suffix } = display(rows[row].bound);
      context.fillStyle = theme.colors.text.primary;
      // Every second or third name where the rows are low, so that none covers another.
      const every = Math.ceil(14 / cell.h);
      if (Number.isFinite(rows[row].bound) && (row - low) % every === 0) context.fillText(`${text}${suffix ?? ""}`, 4, Math.max(y + 4, 10));
    }
    [0, 0.25, 0.5, 0.75].forEach((part) => {
      const time = new Date((from + part * (to - from)) * 1000).toTimeString().slice(0, 5);
      context.fillText(time, left + part * (width - left), height - 4);
    });
  });
  return <canvas ref={canvas} width={width} height={height} />;
}

async function load(panel) {
  const width = panel.gridPos.w * CELL.width;
  if (panel.type === "table") {
    const several = panel.targets.length > 1;
    const frames = await Promise.all(panel.targets.map((target) => tableFrame(target, several)));
    const transformed = await lastValueFrom(transformDataFrame(panel.transformations ?? [], frames));
    return { frames: transformed.map((frame) => configure(frame, panel, {}, "thresholds", 0)) };
  }
  const groups = await Promise.all(panel.targets.map((target) => (target.instant ? instantFrames(target) : rangeFrames(target, width))));
  const colors = panel.type === "timeseries" ? "palette-classic" : "thresholds";
  return { frames: groups.flat().map((frame, index) => configure(frame, panel, SERIES_DEFAULTS, colors, index)) };
}

const empty = (text) => <div style={{ padding: 24, textAlign: "center", color: theme.colors.text.secondary }}>{text}</div>;

function Content({ panel, frames, width, height }) {
  if (panel.type === "stat") {
    const field = frames[0]?.fields[1];
    const values = field?.values.filter((value) => value !== null) ?? [];
    if (!values.length) return empty(panel.fieldConfig.defaults.noValue ?? "No data");
    const value = field.display(values[values.length - 1]);
    return (
      <BigValue theme={theme} width={width} height={height} value={value} colorMode={panel.options.colorMode}
        graphMode={panel.options.graphMode} justifyMode="center" text={panel.options.text} />
    );
  }
  if (!frames.length || !frames[0].length) return empty("No data");
  if (panel.type === "table") return <Table data={frames[0]} width={width} height={height} enableSharedCrosshair={false} />;
  if (panel.type === "heatmap") return <Heat frames={frames} width={width} height={height} unit={panel.fieldConfig.defaults.unit} />;
  return (
    <TimeSeries frames={frames} timeRange={timeRange} timeZone="browser" width={width} height={height}
      legend={panel.options.legend} structureRev={1} />
  );
}

function Board({ panels }) {
  return (
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <style>{chartStyle}</style>
      <h3 style={{ margin: "10px 16px", height: 24 }}>{dashboard.title}</h3>
      <div style={{ position: "relative", height: Math.max(...panels.map(({ panel: { gridPos: p } }) => p.y + p.h)) * CELL.height + 16 }}>
        {panels.map(({ panel, frames, error }) => {
          const { x, y, w, h } = panel.gridPos;
          const width = w * CELL.width - CELL.gap, height = h * CELL.height - CELL.gap;
          const place = { position: "absolute", left: x * CELL.width + CELL.gap, top: y * CELL.height, width, height };
          if (panel.type === "row") return <div key={panel.id} style={{ ...place, paddingTop: 6, fontWeight: 500 }}>{panel.title}</div>;
          return (
            <div key={panel.id} style={place}>
              <PanelChrome title={panel.title} width={width} height={height}>
                {(w, h) => (error ? empty(error) : <Content panel={panel} frames={frames} width={w} height={h} />)}
              </PanelChrome>
            </div>
          );
        })}
      </div>
    </ThemeContext.Provider>
  );
}

const panels = await Promise.all(
  dashboard.panels.map(async (panel) => {
    if (panel.type === "row") return { panel };
    try {
      return { panel, ...(await load(panel)) };
    } catch (error) {
      return { panel, frames: [], error: String(error.message ?? error) };
    }
  }),
);
createRoot(document.getElementById("root")).render(<Board panels={panels} />);
const points = (frame) => frame.fields.filter((field) => field.type === FieldType.number).flatMap((field) => field.values).filter((v) => v !== null).length;
window.drawn = panels
  .filter(({ panel }) => panel.type !== "row")
  .map(({ panel, frames, error }) => ({ title: panel.title, error, points: frames.map(points).reduce((a, b) => a + b, 0) }));
