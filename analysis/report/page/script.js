"use strict";

// One chart after another: the page stays usable meanwhile.
async function drawCharts() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const tooltip = {theme: dark ? "dark" : "light", formatTooltip};
  for (const panel of document.querySelectorAll(".panel")) {
    const spec = JSON.parse(panel.querySelector("script").textContent);
    await vegaEmbed(panel.querySelector(".chart"), spec, {actions: false, renderer: "svg", tooltip});
    panel.dataset.drawn = "true";
  }
  document.body.dataset.drawn = "true";
}

// Of a trial also its settings, which a figure's data do not have.
const configs = JSON.parse(document.getElementById("configs").textContent);
function formatTooltip(shown, sanitize) {
  const config = configs[shown.trial_id];
  const cells = Object.entries(config ? {...shown, config} : shown).map(([key, value]) =>
    `<tr><td class="key">${sanitize(key)}</td><td class="value">${sanitize(value)}</td></tr>`);
  return `<table>${cells.join("")}</table>`;
}

const values = (cell) => JSON.parse(cell.dataset.values);

// What is missing comes last, whichever way round.
function compare(one, other, direction) {
  if (one === null || other === null) return (one === null) - (other === null);
  if (typeof one === "number" && typeof other === "number") return direction * (one - other);
  return direction * String(one).localeCompare(String(other), undefined, {numeric: true});
}

function sortBy(head) {
  const table = head.closest("table"), column = head.cellIndex;
  const direction = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
  for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
  head.setAttribute("aria-sort", direction === 1 ? "ascending" : "descending");
  const key = (row) => values(row.cells[column])[0];
  const rows = [...table.tBodies[0].rows].sort((a, b) => compare(key(a), key(b), direction));
  table.tBodies[0].append(...rows);
}

// As it is sorted now.
const rowsOf = (table) => [...table.tBodies[0].rows].map((row) => [...row.cells]);

function csv(table) {
  const quoted = (value) => {
    const text = value === null ? "" : String(value);
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const heads = [...table.tHead.rows[0].cells].flatMap((head) => JSON.parse(head.dataset.names));
  const rows = rowsOf(table).map((cells) => cells.flatMap(values));
  return [heads, ...rows].map((row) => row.map(quoted).join(",")).join("\n") + "\n";
}

function latex(table) {
  const special = {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"};
  const escaped = (cell) =>
    cell.textContent.replace(/[\\~^&%$#_{}]/g, (letter) => special[letter] ?? `\\${letter}`);
  const heads = [...table.tHead.rows[0].cells];
  const lines = [heads, ...rowsOf(table)].map((row) => row.map(escaped).join(" & ") + " \\\\");
  const [head, ...body] = lines;
  const columns = "l".repeat(heads.length);
  return [`\\begin{tabular}{${columns}}`, "\\toprule", head, "\\midrule", ...body, "\\bottomrule",
    "\\end{tabular}", ""].join("\n");
}

// Files opened from a disk may not be allowed to use the clipboard's own interface.
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = document.body.appendChild(document.createElement("textarea"));
    area.value = text;
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

const FORMS = {csv, latex};

document.addEventListener("click", async ({target}) => {
  if (target.matches("th[aria-sort]")) sortBy(target);
  if (!target.matches("button[data-copy]")) return;
  const words = target.textContent;
  await copy(FORMS[target.dataset.copy](target.closest(".table").querySelector("table")));
  target.textContent = "copied";
  setTimeout(() => { target.textContent = words; }, 1500);
});
document.addEventListener("keydown", ({key, target}) => {
  if (key === "Enter" && target.matches("th[aria-sort]")) sortBy(target);
});
drawCharts();
