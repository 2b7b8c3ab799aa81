// The past of a counter, of the fleet (from the summary's tables) or of this member (from its own samples): from a set to
// its members and to their connections. A name has the same colour wherever it is drawn.

import { amount, arrow, byId, el, moment, NONE, perSecond, setText, Table } from "./pieces.js";

// Colours that are told apart also by those who see few of them (Okabe and Ito), and dashes for those that share one.
const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#7f7f7f", "#8a5fbf"];
const DASHES = [[], [8, 4], [3, 3], [12, 3, 3, 3]];
const MOST = 12;
const RANGES = {
  "1 h": { s: 3600, step: 60, tables: ["minutes"] },
  "24 h": { s: 86400, step: 600, tables: ["minutes", "hours"] },
  "7 d": { s: 604800, step: 3600, tables: ["hours", "days"] },
  "90 d": { s: 7776000, step: 86400, tables: ["days"] },
};
const STEP_S = { minutes: 60, hours: 3600, days: 86400 };
const COUNTERS = [
  "Files Installed", "Packets Received in Bytes", "Packets Sent in Bytes", "Change Orders Issued", "Change Orders Retried",
  "Remote Change Orders Received", "Backlog", "Backlog in Bytes", "Age of Oldest Change Order in Seconds", "Journal Lag in Seconds",
];
const REFRESH_MS = 60000;

// Where one is: of the fleet or of this member, and what of it was chosen so far.
let way = [];
let source = "member";
let range = "1 h";
let plot = null;
let timer = 0;
let asked = 0;

const table = new Table("The same as a table", "tight");
byId("history-table").append(table.node);

function hash(text) {
  let value = 7;
  for (const char of text) value = (value * 31 + char.codePointAt(0)) >>> 0;
  return value;
}

// Of a connection, that of the member at its other end.
function look(name, level) {
  const ends = name.split("->");
  const of = level === "connection" && ends.length === 2 ? ends[ends[0] === way.at(-1)?.member ? 1 : 0] : name;
  const value = hash(of);
  return { stroke: COLOURS[value % COLOURS.length], dash: DASHES[Math.floor(value / COLOURS.length) % DASHES.length] };
}

const LEVELS = { fleet: ["set", "replica", "connection"], member: ["set", "connection"] };
const NAMED = { set: "set", replica: "member", connection: "connection" };

function level() {
  const levels = LEVELS[source];
  return levels[Math.min(way.length, levels.length - 1)];
}

async function get(path, params) {
  const response = await fetch(`${path}?${new URLSearchParams(params)}`, { signal: AbortSignal.timeout(60000) });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

async function rowsOf(counter) {
  const { s, step, tables } = RANGES[range];
  const chosen = Object.assign({}, ...way);
  const since = (seconds) => new Date(Math.floor((Date.now() / 1000 - seconds) / step) * step * 1000).toISOString();
  if (source === "member") {
    const { set, connection } = chosen;
    const answer = await get("/api/history/own", { counter, since: since(s), step, ...(set && { set }), ...(connection && { connection }) });
    return { ...answer, step };
  }
  const asking = { level: level(), counter, since: since(s), ...chosen };
  let answer = { rows: [], more: false };
  let table = "";
  for (table of tables) {
    answer = await get("/api/history", { table, ...asking });
    if (!answer.more) break;
  }
  return { ...answer, step: STEP_S[table] };
}

function draw(counter, { rows, step, more }) {
  const named = NAMED[level()];
  const series = new Map();
  for (const row of rows) {
    const name = row[named];
    if (!series.has(name)) series.set(name, new Map());
    const at = Math.floor(Date.parse(row.time) / 1000 / step) * step;
    series.get(name).set(at, row.per_second ?? row.last);
  }
  const sum = (values) => [...values.values()].reduce((all, value) => all + (value || 0), 0);
  const ranked = [...series].sort((one, other) => sum(other[1]) - sum(one[1]) || (one[0] < other[0] ? -1 : 1));
  const shown = ranked.slice(0, MOST).sort((one, other) => (one[0] < other[0] ? -1 : 1));
  const begin = Math.floor((Date.now() / 1000 - RANGES[range].s) / step) * step;
  const times = [];
  for (let at = begin; at <= Date.now() / 1000; at += step) times.push(at);
  const isAmount = rows.length > 0 && rows.every((row) => row.per_second === null);
  const told = (value) => (value === null || value === undefined ? NONE : isAmount ? amount(counter, value) : value ? perSecond(counter, value) : "0/s");

  plot?.destroy();
  plot = null;
  const place = byId("history-plot");
  place.replaceChildren();
  setText(byId("history-said"), shown.length ? [
    ranked.length > MOST && `Drawn are the ${MOST} with most of it, of ${ranked.length}.`, more && "There is more than fits here.",
  ].filter(Boolean).join(" ") : `Nothing of “${counter}” in this time.`);
  byId("history-figure").hidden = !shown.length;
  if (shown.length) {
    const style = getComputedStyle(document.body);
    const axis = { stroke: style.getPropertyValue("--muted"), grid: { stroke: style.getPropertyValue("--line"), width: 1 }, font: "12px system-ui" };
    const values = shown.map(([, of]) => times.map((at) => of.get(at) ?? null));
    place.setAttribute("aria-label", `${counter}, ${range}: ${shown.map(([name]) => name).join(", ")}`);
    plot = new window.uPlot({
      width: Math.max(place.clientWidth, 240), height: 300, cursor: { drag: { x: true, y: false } },
      scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.05 : 1] } },
      series: [{ value: (_, at) => (at ? moment(new Date(at * 1000).toISOString()) : NONE) },
        ...shown.map(([name]) => ({ label: arrow(name), width: 2, spanGaps: false, points: { size: 5 }, value: (_, value) => told(value), ...look(name, level()) }))],
      axes: [axis, { ...axis, size: 84, values: (_, ticks) => ticks.map((value) => (isAmount ? amount(counter, value) : value ? perSecond(counter, value) : "0")) }],
    }, [times, ...values], place);
  }
  table.update(
    [{ head: "From", cls: "name" }, ...shown.map(([name]) => ({ head: arrow(name), cls: "num" }))],
    times.filter((at) => shown.some(([, of]) => of.has(at))).map((at) => ({
      key: at, cells: [moment(new Date(at * 1000).toISOString()), ...shown.map(([, of]) => told(of.get(at)))],
    })),
  );
  const deeper = way.length < LEVELS[source].length;
  byId("history-into").replaceChildren(...(deeper ? ranked : []).slice(0, 100).map(([name]) => {
    const button = el("button", { type: "button", className: "button", "aria-label": `Only ${name}` }, arrow(name));
    button.addEventListener("click", () => go([...way, { [named]: name }]));
    return el("li", {}, button);
  }));
}

function go(to) {
  way = to;
  const root = source === "member" ? "This member" : "Fleet";
  byId("history-way").replaceChildren(...[root, ...way.map((one) => Object.values(one)[0])].map((name, i, all) => {
    if (i === all.length - 1) return el("li", { "aria-current": "true", textContent: arrow(name) });
    const button = el("button", { type: "button", className: "button", textContent: arrow(name) });
    button.addEventListener("click", () => go(way.slice(0, i)));
    return el("li", {}, button);
  }));
  return ask();
}

async function ask() {
  clearTimeout(timer);
  const mine = (asked += 1);
  const counter = byId("history-counter").value;
  try {
    const found = await rowsOf(counter);
    if (mine !== asked) return;
    draw(counter, found);
  } catch (error) {
    if (mine === asked) setText(byId("history-said"), error.message);
  }
  if (mine === asked && byId("history-figure").checkVisibility()) timer = setTimeout(ask, REFRESH_MS);
}

byId("history-counter").append(...COUNTERS.map((name) => el("option", { textContent: name })));
byId("history-range").append(...Object.keys(RANGES).map((name) => {
  const button = el("button", { type: "button", className: "button", textContent: name, "aria-pressed": name === range });
  button.addEventListener("click", () => {
    range = name;
    for (const one of byId("history-range").children) one.setAttribute("aria-pressed", one === button);
    ask();
  });
  return button;
}));
byId("history-counter").addEventListener("change", ask);
byId("history-source").addEventListener("change", () => {
  source = byId("history-source").value;
  go([]);
});
document.addEventListener("tab", (event) => {
  clearTimeout(timer);
  if (event.detail === "history") go(way);
});
new ResizeObserver(() => {
  const width = byId("history-plot").clientWidth;
  if (plot && width && width !== plot.width) plot.setSize({ width, height: 300 });
}).observe(byId("history-plot"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (plot) ask(); });
