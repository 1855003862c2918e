// Checks dashboards against the schema that Grafana publishes: node check-schema.mjs FILE.json ... Grafana's schema
// package holds it as TypeScript types; they become a JSON Schema here, which knows no unlisted property.
import { readFile, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

import Ajv from "ajv";
import { createGenerator } from "ts-json-schema-generator";

const types = join(dirname(fileURLToPath(import.meta.resolve("@grafana/schema"))), "raw");
const panels = {
  timeseries: ["timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen", true],
  stat: ["stat/panelcfg/x/StatPanelCfg_types.gen", false],
  table: ["table/panelcfg/x/TablePanelCfg_types.gen", false],
  heatmap: ["heatmap/panelcfg/x/HeatmapPanelCfg_types.gen", true],
};

const source = join(tmpdir(), `dashboard-schema-${process.pid}.ts`);
const lines = [`export type { Dashboard, Panel, RowPanel } from "${types}/dashboard/x/dashboard_types.gen";`];
for (const [name, [path, custom]] of Object.entries(panels)) {
  lines.push(`import * as ${name} from "${types}/composable/${path}";`, `export type ${name}Options = ${name}.Options;`);
  if (custom) lines.push(`export type ${name}Custom = ${name}.FieldConfig;`);
}
await writeFile(source, lines.join("\n"));

const ajv = new Ajv({ strict: false, allErrors: true });
const validators = {};
function validate(type, value) {
  if (!validators[type]) {
    const schema = createGenerator({ path: source, type, skipTypeCheck: true, additionalProperties: false }).createSchema(type);
    validators[type] = ajv.compile(schema);
  }
  return validators[type](value) ? [] : validators[type].errors;
}

let bad = 0;
function report(where, errors) {
  for (const { instancePath, message, params } of errors) {
    bad += 1;
    console.error(`${where}${instancePath}: ${message} ${JSON.stringify(params)}`);
  }
}
for (const file of process.argv.slice(2)) {
  const dashboard = JSON.parse(await readFile(file, "utf8"));
  const { panels: all, ...rest } = dashboard;
  // The Prometheus data source keeps an annotation's query beside the fields that the schema lists.
  for (const annotation of rest.annotations.list) {
    for (const name of ["expr", "titleFormat", "textFormat", "useValueForTime"]) delete annotation[name];
  }
  report(`${file}`, validate("Dashboard", { ...rest, panels: [] }));
  for (const panel of all) {
    const where = `${file} "${panel.title}"`;
    report(where, validate(panel.type === "row" ? "RowPanel" : "Panel", panel));
    if (panel.type === "row") continue;
    const [, custom] = panels[panel.type];
    report(`${where} options`, validate(`${panel.type}Options`, panel.options ?? {}));
    if (custom) report(`${where} custom`, validate(`${panel.type}Custom`, panel.fieldConfig.defaults.custom ?? {}));
  }
  console.log(`${file}: ${all.length} panels checked`);
}
process.exitCode = bad ? 1 : 0;
