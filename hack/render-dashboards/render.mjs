// Takes a picture of a dashboard: node render.mjs --dashboard FILE --prometheus URL --out FILE.png [--minutes 15]
// [--width 1600] [--theme dark|light] [--end UNIX_SECONDS] [--scrape SECONDS]. Ends with status 1 if a panel has no data
// (--empty "TITLE,TITLE" names those that may have none).
import { createServer } from "node:http";
import { readFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

import esbuild from "esbuild";
import puppeteer from "puppeteer-core";

const here = dirname(fileURLToPath(import.meta.url));
const { values: options } = parseArgs({
  options: {
    dashboard: { type: "string" },
    prometheus: { type: "string", default: "http://127.0.0.1:9090" },
    out: { type: "string" },
    minutes: { type: "string", default: "15" },
    end: { type: "string" },
    scrape: { type: "string", default: "5" },
    width: { type: "string", default: "1600" },
    theme: { type: "string", default: "dark" },
    empty: { type: "string", default: "" },
    chromium: { type: "string", default: process.env.CHROMIUM || "/usr/bin/chromium" },
  },
});
if (!options.dashboard || !options.out) {
  console.error("render: --dashboard and --out are needed");
  process.exit(2);
}

const bundle = await esbuild.build({
  entryPoints: [join(here, "page.jsx")],
  bundle: true,
  write: false,
  format: "esm",
  jsx: "automatic",
  // The CommonJS builds: in the others esbuild mistakes the default exports of some libraries.
  alias: Object.fromEntries(
    ["@grafana/ui", "@grafana/data", "@grafana/schema"].map((name) => [name, fileURLToPath(import.meta.resolve(name)).replace("/esm/index.mjs", "/cjs/index.cjs")]),
  ),
  define: { "process.env.NODE_ENV": '"production"', global: "window" },
  loader: { ".svg": "text", ".css": "text" },
  logLevel: "error",
});
const end = Number(options.end ?? Date.now() / 1000);
const settings = {
  dashboard: JSON.parse(await readFile(options.dashboard, "utf8")),
  from: end - Number(options.minutes) * 60,
  to: end,
  scrape: Number(options.scrape),
  theme: options.theme,
};
const page = `<!doctype html><meta charset="utf-8"><div id="root"></div>
<script>window.settings = ${JSON.stringify(settings).replaceAll("<", "\\u003c")}</script><script type="module" src="/page.js"></script>`;

// One origin for the page and for Prometheus, which sends no CORS headers by default.
const server = createServer(async (request, response) => {
  if (request.url === "/page.js") {
    response.writeHead(200, { "Content-Type": "text/javascript" });
    return response.end(bundle.outputFiles[0].text);
  }
  if (request.url.startsWith("/api/")) {
    const answer = await fetch(options.prometheus + request.url);
    response.writeHead(answer.status, { "Content-Type": "application/json" });
    return response.end(Buffer.from(await answer.arrayBuffer()));
  }
  if (request.url === "/") {
    response.writeHead(200, { "Content-Type": "text/html" });
    return response.end(page);
  }
  response.writeHead(404).end();
});
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));

const browser = await puppeteer.launch({
  executablePath: options.chromium,
  args: ["--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-color-profile=srgb"],
});
try {
  const tab = await browser.newPage();
  tab.on("pageerror", (error) => console.error("page:", error.message));
  await tab.setViewport({ width: Number(options.width), height: 900 });
  await tab.goto(`http://127.0.0.1:${server.address().port}/`, { waitUntil: "domcontentloaded", timeout: 120_000 });
  await tab.waitForFunction("window.drawn", { timeout: 120_000 });
  await new Promise((resolve) => setTimeout(resolve, 1500)); // the charts draw themselves in animation frames
  await tab.screenshot({ path: options.out, fullPage: true });
  const panels = await tab.evaluate("window.drawn");
  const allowed = options.empty.split(",");
  const empty = panels.filter((panel) => !panel.points && !allowed.includes(panel.title));
  console.log(`${options.out}: ${panels.length} panels`);
  for (const panel of panels.filter((panel) => panel.error)) console.error(`failed: ${panel.title}: ${panel.error}`);
  for (const panel of empty) console.error(`no data: ${panel.title}`);
  process.exitCode = empty.length || panels.some((panel) => panel.error) ? 1 : 0;
} finally {
  await browser.close();
  server.close();
}
