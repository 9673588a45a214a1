"use strict";

// Errors alone: Vega also warns of scales without data, as an empty layer has them.
const options = {
  actions: false, renderer: "svg", logLevel: 1,
  tooltip: {formatTooltip},
};
const json = (node) => JSON.parse(node.textContent);
const escaped = (text) => String(text).replace(/[&<>"']/g, (letter) => `&#${letter.charCodeAt(0)};`);
const element = (name, properties, ...children) => {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
};

// --- Charts: one after another, those that are in view first; the page stays usable meanwhile.

const configs = json(document.getElementById("configs"));
const look = json(document.getElementById("look"));

// Of a trial also its settings, which a figure's data do not have.
function formatTooltip(shown, sanitize) {
  const config = configs[shown.trial_id];
  const cells = Object.entries(config ? {...shown, config} : shown).map(([key, value]) =>
    `<tr><td class="key">${sanitize(key)}</td><td class="value">${sanitize(value)}</td></tr>`);
  return `<table>${cells.join("")}</table>`;
}

// Vega's signal of the width holds that of the plot inside once a chart is fitted, so a chart whose
// plot was as wide as its room is now would stay as it was.
const followWidth = (view, chart) => {
  let width = chart.clientWidth;
  new ResizeObserver(() => {
    if (chart.clientWidth === width) return;
    width = chart.clientWidth;
    view.signal("width", width, {force: true}).runAsync();
  }).observe(chart);
};

async function draw(panel) {
  const spec = json(panel.querySelector("script"));
  const {view} = await vegaEmbed(panel.querySelector(".chart"), spec, options);
  view.addEventListener("click", (event, item) => {
    if (item?.datum?.trial_id) openTrial(item.datum.trial_id);
  });
  followWidth(view, panel.querySelector(".chart"));
  panel.dataset.drawn = "true";
  const figure = panel.closest("figure");
  if (!figure.querySelector(".panel:not([data-drawn])")) figure.dataset.live = "true";
}

const inView = (node) => {
  const {top, bottom} = node.getBoundingClientRect();
  return bottom > 0 && top < innerHeight;
};
const frame = () => new Promise((done) => setTimeout(done));

const PICTURE = "first picture";  // bench/report.py reads when it was there
async function drawCharts() {
  const left = new Set(document.querySelectorAll(".panel"));
  while (left.size) {
    const next = [...left].find(inView) ?? [...left][0];
    left.delete(next);
    await draw(next);
    await frame();
    if (!performance.getEntriesByName(PICTURE).length) performance.mark(PICTURE);
  }
  document.body.dataset.drawn = "true";
}

// --- Tables: search, pages, hidden columns and order are DataTables'.

const words = (cell) => Array.isArray(cell) ? cell[0] : cell ?? "";
const values = (cell) => Array.isArray(cell) ? cell.slice(1) : [cell];

// What is missing comes last, whichever way round. DataTables says "" of it.
const isMissing = (value) => value === null || value === "";
const compare = (direction) => (one, other) => {
  if (isMissing(one) || isMissing(other)) return isMissing(one) - isMissing(other);
  if (typeof one === "number" && typeof other === "number") return direction * (one - other);
  return direction * String(one).localeCompare(String(other), undefined, {numeric: true});
};
DataTable.ext.type.order["value-asc"] = compare(1);
DataTable.ext.type.order["value-desc"] = compare(-1);
DataTable.ext.errMode = "throw";

const SHOWN = {
  trial: (text) => text && `<button class="trial" data-trial="${text}">${text}</button>`,
  command: (text) => text && `<code>${text}</code>`,
};

function columnOf({title, kind}) {
  const show = SHOWN[kind] ?? ((text) => text);
  return {
    title: escaped(title),
    type: "value",
    className: kind,
    defaultContent: "",
    render: (cell, purpose) => {
      if (purpose === "sort" || purpose === "type") return values(cell)[0];
      return purpose === "display" ? show(escaped(words(cell))) : words(cell);
    },
  };
}

const PAGE = 15;
function makeTable(block) {
  const {heads, columns} = json(block.querySelector("script"));
  const shown = columns.map(({cells, at}) => at ? at.map((place) => cells[place]) : cells);
  const rows = shown[0].map((_, row) => shown.map((column) => column[row]));
  const many = rows.length > PAGE;
  block.dataTable = new DataTable(block.querySelector("table"), {
    columns: heads.map(columnOf),
    data: rows,
    order: [],
    autoWidth: false,
    deferRender: true,
    paging: many,
    searching: rows.length > 1,
    info: many,
    pageLength: PAGE,
    lengthMenu: [PAGE, 50, 200, {label: "all", value: -1}],
    layout: {
      topStart: heads.length > 3 ? {buttons: [{extend: "colvis", text: "columns"}]} : null,
      topEnd: rows.length > 1 ? "search" : null,
      bottomStart: many ? "info" : null,
      bottomEnd: many ? ["pageLength", "paging"] : null,
    },
  });
  block.heads = heads;
  block.dataset.made = "true";
}

// The rows that the search leaves, as they are sorted now, with all columns.
function csv({heads, dataTable}) {
  const quoted = (value) => {
    const text = value === null ? "" : String(value);
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const rows = dataTable.rows({order: "applied", search: "applied"}).data().toArray();
  return [heads.flatMap((head) => head.names), ...rows.map((row) => row.flatMap(values))]
    .map((row) => row.map(quoted).join(",")).join("\n") + "\n";
}

// Files opened from a disk may not be allowed to use the clipboard's own interface. Says whether it
// worked.
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.body.appendChild(document.createElement("textarea"));
    area.value = text;
    area.select();
    const worked = document.execCommand("copy");
    area.remove();
    return worked;
  }
}

async function makeTables() {
  for (const block of document.querySelectorAll(".table:not([data-made])")) {
    makeTable(block);
    await frame();
  }
  document.body.dataset.tables = "true";
}

// --- A trial: its config, curve and log, from the file that holds them.

const dialog = document.getElementById("trial"), content = document.getElementById("trial-content");
const known = {};
globalThis.pipegap = {trials: (common, trials) => {
  for (const [id, trial] of Object.entries(trials)) {
    known[id] = {...trial, config: {...common, ...trial.config}};
  }
}};

const fileOf = (id) => `trials/${/^[0-9a-z]{2}/.exec(id)?.[0] ?? "other"}.js`;
const load = (file) => new Promise((done) => {
  const script = element("script", {src: `${file}?${Date.now()}`, onload: done, onerror: done});
  document.head.append(script);
}).finally(() => document.querySelectorAll("head script[src]").forEach((script) => script.remove()));

async function openTrial(id) {
  if (location.hash !== `#trial=${id}`) history.pushState(null, "", `#trial=${id}`);
  if (!(id in known)) await load(fileOf(id));
  await showTrial(id);
}

async function showTrial(id) {
  document.getElementById("trial-title").textContent = `Trial ${id}`;
  const trial = known[id];
  delete dialog.dataset.drawn;
  if (!dialog.open) dialog.showModal();
  if (!trial) {
    content.replaceChildren(element("p", {}, configs[id] ?? "",
      element("p", {className: "note"}, `${fileOf(id)} beside this page has nothing of it.`)));
    return;
  }
  const chart = element("div", {className: "chart"});
  content.replaceChildren(
    pairs(trial.summary),
    element("p", {}, element("code", {}, trial.command)),
    element("h3", {}, "Loss"),
    chart,
    element("p", {className: "note"}, trial.shown),
    ...(trial.error ? [element("h3", {}, "Error"), element("pre", {}, trial.error)] : []),
    element("h3", {}, "Log"),
    element("ul", {}, ...trial.log.map((line) => element("li", {}, line))),
    element("h3", {}, "Config"),
    pairs(trial.config),
  );
  if (trial.curves.training.length) {
    await vegaEmbed(chart, curvesOf(trial.curves), options);
  }
  dialog.dataset.drawn = "true";
}

const pairs = (object) => element("dl", {}, ...Object.entries(object).flatMap(([key, value]) =>
  [element("dt", {}, key), element("dd", {}, typeof value === "string" ? value : JSON.stringify(value))]));

const curvesOf = (curves) => ({
  config: look, width: "container", height: 240,
  data: {values: Object.entries(curves).flatMap(([of, points]) =>
    points.map(([update, loss]) => ({update, loss, of})))},
  mark: {type: "line", point: {size: 18}},
  encoding: {
    x: {field: "update", type: "quantitative"},
    y: {field: "loss", type: "quantitative", scale: {zero: false}},
    color: {field: "of", type: "nominal", title: null, scale: {range: look.range.category}, legend: {orient: "top"}},
    tooltip: [{field: "of"}, {field: "update"}, {field: "loss"}],
  },
});

function followHash() {
  const id = /^#trial=(.+)$/.exec(location.hash)?.[1];
  if (id) openTrial(decodeURIComponent(id));
  else if (dialog.open) dialog.close();
}
dialog.addEventListener("close", () => {
  if (location.hash.startsWith("#trial=")) history.pushState(null, "", location.pathname);
});
addEventListener("popstate", followHash);

// --- Contents: open where there is room, with the section in view marked.

document.getElementById("contents").open = matchMedia("(min-width: 72rem)").matches;
const watcher = new IntersectionObserver((entries) => {
  for (const {target, isIntersecting} of entries) {
    const link = document.querySelector(`nav a[href="#${CSS.escape(target.id)}"]`);
    if (link) link.toggleAttribute("data-current", isIntersecting);
  }
}, {rootMargin: "0px 0px -60% 0px"});

// --- Print: everything is open and on one page of its table.

const opened = new Map();
addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details")) {
    opened.set(details, details.open);
    details.open = true;
  }
  document.querySelectorAll(".table:not([data-made])").forEach(makeTable);
  for (const {dataTable} of document.querySelectorAll(".table")) {
    dataTable.page.len(-1).draw(false);
  }
});
addEventListener("afterprint", () => {
  for (const [details, open] of opened) details.open = open;
  opened.clear();
  for (const {dataTable} of document.querySelectorAll(".table")) {
    dataTable.page.len(PAGE).draw(false);
  }
});

// --- Start.

document.addEventListener("click", async ({target}) => {
  const opener = target.closest("button[data-trial]");
  if (opener) await openTrial(opener.dataset.trial);
  if (!target.matches("button[data-copy]")) return;
  const said = target.textContent;
  target.textContent = await copy(csv(target.closest(".table"))) ? "copied" : "not allowed";
  setTimeout(() => { target.textContent = said; }, 1500);
});

for (const node of document.querySelectorAll("figure[id], .table[id], header[id], main > section[id]")) {
  watcher.observe(node);
}
followHash();
drawCharts();
makeTables();
