// The page of one member. Everything shown is set as text, never as HTML: names, paths and errors come from users.

const POLL_MS = 2000;
const SUMMARY_MS = 30000;
const NONE = "–";

const STATES = {
  joined: ["good", "joined"],
  vvjoin: ["busy", "initial sync"],
  joining: ["busy", "joining"],
  start_join: ["busy", "starting to join"],
  need_join: ["busy", "about to join"],
  unjoined: ["idle", "unjoined"],
};
const SET_STATES = {
  online: ["good", "online"],
  starting: ["busy", "starting"],
  seeding: ["busy", "seeding"],
  stopped: ["idle", "stopped"],
};

const byId = (id) => document.getElementById(id);

function el(tag, props = {}, ...kids) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name in node && name !== "role") node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...kids);
  return node;
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// ---- how values are written

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const number = (value) => (value === null || value === undefined ? NONE : whole.format(value));

function bytes(value) {
  if (value === null || value === undefined) return NONE;
  let unit = 0;
  while (value >= 1024 && unit < 5) {
    value /= 1024;
    unit += 1;
  }
  return `${value >= 100 || unit === 0 ? whole.format(value) : short.format(value)} ${["B", "KiB", "MiB", "GiB", "TiB", "PiB"][unit]}`;
}

function percent(value) {
  if (value === null || value === undefined) return NONE;
  return value > 0 && value < 0.0001 ? "< 0.01 %" : `${short.format(value * 100)} %`;
}

const countsBytes = (counter) => counter.endsWith("in Bytes") || counter.startsWith("Bytes of");
const perSecond = (counter, value) =>
  value ? `${countsBytes(counter) ? bytes(value) : short.format(value)}/s` : NONE;

function moment(iso) {
  const date = new Date(iso);
  if (!iso || Number.isNaN(date.getTime())) return NONE;
  const two = (part) => String(part).padStart(2, "0");
  return (
    `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ` +
    `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`
  );
}

function duration(seconds) {
  if (!Number.isFinite(seconds) || seconds < 0) return NONE;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor(seconds / 60) % 60} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${whole.format(seconds / 86400)} days`;
}

const arrow = (name) => String(name).replace("->", " → ");

// ---- pieces of the page that are made once and then kept up to date

class Pill {
  constructor(tag = "span") {
    this.words = el("span");
    this.node = el(tag, { className: "pill idle" }, el("span", { className: "dot", "aria-hidden": "true" }), this.words);
  }
  set([kind, words]) {
    const name = `pill ${kind}`;
    if (this.node.className !== name) this.node.className = name;
    setText(this.words, words);
  }
}

// columns: [{ head, cls }]; rows: [{ key, cells }], the first cell is the row's heading. A cell is a text or
// { pill: [kind, words] }.
class Table {
  constructor(caption, cls = "", of = "") {
    // The roles are those the elements have anyway; a narrow page lays rows out as blocks, which would lose them.
    this.head = el("tr", { role: "row" });
    this.body = el("tbody", { role: "rowgroup" });
    const thead = el("thead", { role: "rowgroup" }, this.head);
    this.table = el("table", { className: cls, role: "table" }, el("caption", { textContent: caption }), thead, this.body);
    this.node = el("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": of ? `${caption} of ${of}` : caption }, this.table);
    this.rows = new Map();
    this.heads = "";
  }
  update(columns, rows) {
    const heads = JSON.stringify(columns);
    if (heads !== this.heads) {
      this.heads = heads;
      this.head.replaceChildren(
        ...columns.map((column) => el("th", { scope: "col", role: "columnheader", className: column.cls || "", textContent: column.head })),
      );
      this.body.replaceChildren();
      this.rows.clear();
    }
    const wanted = new Set(rows.map((row) => row.key));
    for (const [key, row] of this.rows) {
      if (!wanted.has(key)) {
        row.node.remove();
        this.rows.delete(key);
      }
    }
    rows.forEach((row, index) => {
      let known = this.rows.get(row.key);
      if (!known) {
        const cells = columns.map((column, i) =>
          el(i ? "td" : "th", {
            className: column.cls || "", "data-head": column.head, ...(i ? { role: "cell" } : { role: "rowheader", scope: "row" }),
          }));
        known = { node: el("tr", { role: "row" }, ...cells), cells, pills: [] };
        this.rows.set(row.key, known);
      }
      if (this.body.children[index] !== known.node) this.body.insertBefore(known.node, this.body.children[index] || null);
      row.cells.forEach((cell, i) => {
        if (typeof cell === "object") {
          if (!known.pills[i]) {
            known.pills[i] = new Pill();
            known.cells[i].replaceChildren(known.pills[i].node);
          }
          known.pills[i].set(cell.pill);
        } else {
          setText(known.cells[i], cell);
        }
      });
    });
  }
}

class Figures {
  constructor() {
    this.node = el("dl", { className: "figures" });
    this.items = new Map();
  }
  update(entries) {
    for (const [label, value, sub] of entries) {
      let item = this.items.get(label);
      if (!item) {
        item = { value: el("dd"), sub: el("dd", { className: "sub" }) };
        this.items.set(label, item);
        this.node.append(el("div", {}, el("dt", { textContent: label }), item.value, item.sub));
      }
      setText(item.value, value);
      setText(item.sub, sub || "");
    }
  }
}

// ---- one replica set

class ReplicaSet {
  constructor(name, serial) {
    this.title = el("h2", { id: `set-${serial}`, textContent: name });
    this.pill = new Pill();
    this.where = el("p", { className: "muted" });
    this.error = el("p", { className: "notice bad", hidden: true });
    this.lastError = el("p", { className: "notice", hidden: true });
    this.figures = new Figures();
    this.meter = el("meter", { min: 0, "aria-label": `Staging space of ${name} in use` });
    this.used = el("span");
    this.free = el("span", { className: "muted" });
    this.staging = el("div", { className: "staging" }, el("div", { className: "text" }, this.used, this.free), this.meter);
    this.conns = new Table("Connections", "stack", name);
    this.noConns = el("p", { className: "muted", textContent: "No connections." });
    this.all = el("input", { type: "checkbox" });
    this.all.addEventListener("change", () => this.showCounters());
    this.setCounters = new Table("FileReplicaSet", "tight", name);
    this.connCounters = new Table("FileReplicaConn", "tight", name);
    this.counters = el(
      "div",
      { className: "counters", hidden: true },
      el("div", { className: "bar" }, el("h3", { textContent: "Counters since the start" }),
        el("label", {}, this.all, "Show those that are zero")),
      el("div", { className: "two" }, this.setCounters.node, this.connCounters.node),
    );
    this.node = el(
      "section",
      { className: "card", "aria-labelledby": `set-${serial}` },
      el("div", { className: "head" }, this.title, this.pill.node, this.where),
      this.error,
      this.lastError,
      this.figures.node,
      this.staging,
      this.conns.node,
      this.noConns,
      this.counters,
    );
  }

  showStatus(set, down) {
    const state = SET_STATES[set.state] || ["idle", set.state];
    this.pill.set(set.error ? ["bad", state[1]] : down ? ["bad", `${state[1]}, not joined`] : state);
    setText(this.where, [set.type, set.root].filter(Boolean).join(" · "));
    this.error.hidden = !set.error;
    setText(this.error, set.error || "");
    this.lastError.hidden = !set.last_error;
    setText(this.lastError, set.last_error ? `Last error, ${moment(set.last_error.time)}: ${set.last_error.text}` : "");

    const table = set.idtable || {};
    const pending = set.pending || {};
    const waiting = ["aging", "local", "inbound", "outbound"].reduce((sum, key) => sum + (pending[key] || 0), 0);
    const parts = Object.entries(pending).filter(([, count]) => count).map(([key, count]) => `${number(count)} ${key}`);
    this.figures.update([
      ["Files", number(table.files), `${number(table.folders)} folders`],
      ["Pending", number(waiting), parts.join(", ") || "nothing waits"],
      ["Tombstones", number(table.tombstones), "deleted, still remembered"],
      ["Conflicts kept", number(set.conflicts?.kept), set.conflicts?.newest ? `the last ${moment(set.conflicts.newest)}` : "none"],
    ]);

    const { used_kib: used, free_kib: free, quota_kib: quota } = set.staging || {};
    this.staging.hidden = quota === undefined || quota === null;
    if (!this.staging.hidden) {
      Object.assign(this.meter, { max: quota, high: quota * 0.9, low: quota * 0.75, optimum: 0, value: used });
      setText(this.used, `Staging space: ${bytes(used * 1024)} of ${bytes(quota * 1024)} in use`);
      setText(this.free, `${bytes(free * 1024)} free`);
    }

    const columns = [
      { head: "Connection", cls: "name" }, { head: "Direction" }, { head: "State" }, { head: "Backlog", cls: "num" },
      { head: "Joined at", cls: "name" }, { head: "Last error", cls: "wide" },
    ];
    this.noConns.hidden = Boolean(set.connections?.length);
    this.conns.node.hidden = !this.noConns.hidden;
    this.conns.update(columns, (set.connections || []).map((conn) => {
      const [kind, words] = STATES[conn.state] || ["idle", conn.state];
      const failed = conn.last_error && conn.scheduled && conn.state !== "joined";
      const retry = conn.retry_in_s === null || conn.retry_in_s === undefined ? "" : ` (again in ${duration(conn.retry_in_s)})`;
      return {
        key: conn.name,
        cells: [
          arrow(conn.name), conn.direction, { pill: [failed ? "bad" : kind, words] }, number(conn.backlog),
          moment(conn.last_join_time), conn.last_error ? conn.last_error + retry : NONE,
        ],
      };
    }));
  }

  showCounters(values = this.values, conns = this.connValues, rates = this.rates) {
    if (!values) return;
    Object.assign(this, { values, connValues: conns, rates });
    this.counters.hidden = false;
    this.figures.update([
      ["Files installed", number(values["Files Installed"]), perSecond("", rates["Files Installed"])],
      ["Data received", bytes(values["Packets Received in Bytes"]),
        perSecond("in Bytes", rates["Packets Received in Bytes"])],
      ["Data sent", bytes(values["Packets Sent in Bytes"]), perSecond("in Bytes", rates["Packets Sent in Bytes"])],
    ]);
    const all = this.all.checked;
    this.setCounters.update(
      [{ head: "Counter" }, { head: "Value", cls: "num" }, { head: "Now", cls: "num" }],
      Object.entries(values).filter(([, value]) => all || value).map(([name, value]) => ({
        key: name,
        cells: [name, number(value), name.startsWith("KB of") ? NONE : perSecond(name, rates[name])],
      })),
    );
    const names = Object.keys(conns);
    const counters = names.length ? Object.keys(conns[names[0]]) : [];
    this.connCounters.node.hidden = !names.length;
    this.connCounters.update(
      [{ head: "Counter" }, ...names.map((name) => ({ head: arrow(name), cls: "num" }))],
      counters.filter((counter) => all || names.some((name) => conns[name][counter])).map((counter) => ({
        key: counter,
        cells: [counter, ...names.map((name) => number(conns[name][counter]))],
      })),
    );
  }
}

// ---- the live part

const sets = new Map();
const announced = new Map();
let before = null;
let serial = 0;

function showStatus(status) {
  document.title = `${status.member} – frs`;
  setText(byId("member"), status.member);
  const up = duration((Date.now() - new Date(status.started).getTime()) / 1000);
  setText(byId("process"), `frs ${status.version} · process ${status.pid} · up ${up}`);

  const present = status.sets || [];
  for (const name of [...sets.keys()]) {
    if (!present.some((set) => set.name === name)) {
      sets.get(name).node.remove();
      sets.delete(name);
    }
  }
  for (const set of present) {
    if (!sets.has(set.name)) {
      sets.set(set.name, new ReplicaSet(set.name, (serial += 1)));
      byId("sets").append(sets.get(set.name).node);
    }
    sets.get(set.name).showStatus(set, (status.problems || []).some((problem) => problem.stops && problem.set === set.name));
  }

  const conns = present.flatMap((set) => (set.connections || []).map((conn) => [set, conn]));
  const joined = conns.filter(([, conn]) => conn.state === "joined").length;
  const problems = status.problems || [];
  const down = [...new Set(problems.filter((problem) => problem.stops).map((problem) => problem.set))];
  const away = [...new Set(problems.filter((problem) => problem.partner).map((problem) => problem.partner))];
  const several = (names) => (names.length > 3 ? `${names.slice(0, 3).join(", ")} and ${names.length - 3} more` : names.join(", "));
  const words = down.length ? `${several(down)} ${down.length > 1 ? "do" : "does"} not replicate`
    : away.length ? `Not joined: ${several(away)}`
    : !conns.length ? "No connections"
    : joined === conns.length ? `All ${joined} connections joined` : `${joined} of ${conns.length} connections joined`;
  const pill = byId("overall");
  pill.className = `pill ${problems.length ? "bad" : joined === conns.length ? "good" : "busy"}`;
  setText(pill.lastElementChild, words);
  const news = [];
  for (const [set, conn] of conns) {
    const key = `${set.name} ${conn.name}`;
    const words = (STATES[conn.state] || [0, conn.state])[1];
    if (announced.has(key) && announced.get(key) !== words) news.push(`${set.name}, ${conn.name}: ${words}`);
    announced.set(key, words);
  }
  if (news.length) setText(byId("announce"), news.join(". "));
}

// ---- what is wrong, who has joined whom, each partner

const matrix = new Table("Who sends to whom: from the member of the row to the one of the column", "dense matrix");
const partners = new Map();

function stateOf(cell) {
  if (!cell) return ["none", NONE];
  if (cell.joined === null) return ["idle", "not known"];
  const waits = cell.backlog ? `, ${number(cell.backlog)} wait` : "";
  if (!cell.joined) return cell.scheduled ? ["bad", `not joined${waits}`] : ["idle", `closed${waits}`];
  const took = cell.latency_p50_s === null ? "joined" : `joined, ${seconds(cell.latency_p50_s)}`;
  return [cell.backlog ? "busy" : "good", took + waits];
}

const seconds = (value) => (value === null ? NONE : value < 60 ? `${short.format(value)} s` : duration(value));

class Partner {
  constructor(name) {
    this.pill = new Pill();
    this.told = el("span", { className: "muted" });
    this.conns = new Table(`Connections with ${name}`, "dense stack");
    this.node = el("details", { className: "partner" },
      el("summary", {}, el("span", { className: "name", textContent: name }), this.pill.node, this.told), this.conns.node);
  }
  show(one) {
    const away = one.wanted - one.joined;
    const waiting = one.backlog_in + one.backlog_out;
    this.pill.set(away ? ["bad", `${away} of ${one.wanted} not joined`] : !one.wanted ? ["idle", "closed"] : waiting ? ["busy", "joined"] : ["good", "joined"]);
    setText(this.told, [
      one.since && `since ${moment(one.since)}`, `${number(one.backlog_in)} to come, ${number(one.backlog_out)} to send`,
      one.latency_p50_s !== null && `half of its changes within ${seconds(one.latency_p50_s)}, 95 % within ${seconds(one.latency_p95_s)}`,
    ].filter(Boolean).join(" · "));
    this.conns.update(
      [{ head: "Connection", cls: "name" }, { head: "Set", cls: "name" }, { head: "State" }, { head: "Backlog", cls: "num" },
        { head: "Since" }, { head: "Half within", cls: "num" }, { head: "95 % within", cls: "num" }, { head: "Why", cls: "wide" }],
      one.connections.map((cell) => ({
        key: `${cell.set}/${cell.connection}`,
        cells: [arrow(cell.connection), cell.set, { pill: stateOf({ ...cell, latency_p50_s: null }) }, number(cell.backlog),
          moment(cell.since), seconds(cell.latency_p50_s), seconds(cell.latency_p95_s), cell.why || NONE],
      })),
    );
  }
}

function showFleet(fleet) {
  setText(byId("sentence"), fleet.sentence);
  const list = byId("wrong");
  list.hidden = !fleet.wrong.length;
  const told = JSON.stringify(fleet.wrong);
  if (list.dataset.told !== told) {
    list.dataset.told = told;
    list.replaceChildren(...fleet.wrong.map((one) => el("li", {},
      el("p", {}, el("strong", { textContent: one.who }), ` ${one.what}`),
      el("p", { className: "todo" },
        [one.since && `Since ${moment(one.since)}.`, one.advice].filter(Boolean).join(" "),
        ...(one.event ? [" ", el("a", { href: `/events#${one.event}`, textContent: `Event ${one.event}` })] : [])))));
  }

  byId("matrix").hidden = fleet.members.length < 2;
  byId("matrix-more").hidden = !fleet.left_out;
  setText(byId("matrix-more"), `${number(fleet.left_out)} more members, with whom nothing is known to be wrong, are not shown.`);
  matrix.update(
    [{ head: "From", cls: "name" }, ...fleet.members.map((name) => ({ head: name }))],
    fleet.members.map((from) => ({
      key: from,
      cells: [from, ...fleet.members.map((to) => ({ pill: stateOf(fleet.matrix[from]?.[to]) }))],
    })),
  );

  const names = fleet.partners.map((one) => one.partner);
  for (const [name, partner] of partners) {
    if (!names.includes(name)) {
      partner.node.remove();
      partners.delete(name);
    }
  }
  byId("partners").hidden = !names.length;
  for (const one of fleet.partners) {
    if (!partners.has(one.partner)) {
      partners.set(one.partner, new Partner(one.partner));
      byId("partners").append(partners.get(one.partner).node);
    }
    partners.get(one.partner).show(one);
  }
}

function showCounters(snapshot) {
  const now = performance.now();
  const step = before ? (now - before.now) / 1000 : 0;
  for (const [name, view] of sets) {
    const values = snapshot.FileReplicaSet[name];
    if (!values) continue;
    const old = before?.snapshot.FileReplicaSet[name];
    const rates = {};
    for (const [counter, value] of Object.entries(values)) {
      rates[counter] = old && step > 0 ? Math.max(0, value - old[counter]) / step : 0;
    }
    const conns = {};
    for (const [instance, counters] of Object.entries(snapshot.FileReplicaConn)) {
      const cut = instance.lastIndexOf("/");
      if (instance.slice(0, cut) === name) conns[instance.slice(cut + 1)] = counters;
    }
    view.showCounters(values, conns, rates);
  }
  before = { now, snapshot };
}

// ---- the summary that Spark made

const fleetMembers = new Table("Replica sets of all members", "dense");
const fleetHealth = new Table("What is not well", "dense");
const fleetConns = new Table("Connections of all members", "dense");
let shown = "";

function showSummary(summary) {
  byId("fleet-none").hidden = Boolean(summary);
  byId("fleet-body").hidden = !summary;
  if (!summary || summary.generated === shown) return;
  shown = summary.generated;
  setText(byId("fleet-when"), `${moment(summary.first)} to ${moment(summary.last)}, made ${moment(summary.generated)}`);
  const corrupt = summary.source?.corrupt_lines || 0;
  const skipped = summary.source?.skipped?.length || 0;
  const more = summary.left_out || { sets: 0, connections: 0 };
  setText(byId("fleet-warn"), [
    corrupt ? `${number(corrupt)} of ${number(summary.source.lines)} sample lines could not be read and are not counted.` : "",
    skipped ? `${number(skipped)} of ${number(summary.source.files)} sample files could not be read: summary.json names them.` : "",
    more.sets || more.connections ? `Shown are those not well, and those with most traffic; ${number(more.sets)} more sets and ${number(more.connections)} more connections are in the tables of the summary.` : "",
  ].filter(Boolean).join(" "));
  byId("fleet-warn").hidden = !byId("fleet-warn").textContent;
  const unwell = summary.health || [];
  byId("fleet-health").hidden = !unwell.length;
  if (unwell.length) fleetHealth.update(
    [{ head: "Not well", cls: "name" }, { head: "Member", cls: "name" }, { head: "Set", cls: "name" },
      { head: "Connection", cls: "name" }, { head: "Since" }, { head: "What to do" }],
    unwell.map((one) => ({
      key: JSON.stringify([one.rule, one.fleet, one.member_guid, one.set_guid, one.connection_guid]),
      cells: [one.rule, one.member, one.set, arrow(one.connection), moment(one.since), one.advice],
    })),
  );

  byId("fleet-chart").hidden = !summary.charts;
  if (summary.charts) {
    const [source, img] = byId("fleet-chart").querySelectorAll("source, img");
    const version = encodeURIComponent(summary.generated);
    source.srcset = `/summary/chart-dark.svg?${version}`;
    img.src = `/summary/chart-light.svg?${version}`;
    const members = [...new Set(summary.sets.map((set) => set.member))].join(", ");
    img.alt = `Files installed and data received per second over time, for the members ${members}.`;
  }

  const num = (head) => ({ head, cls: "num" });
  fleetMembers.update(
    [{ head: "Member", cls: "name" }, { head: "Set", cls: "name" }, num("Observed"), num("Starts"), num("Files installed"),
      num("Installed"), num("Per file"), num("Received"), num("Sent"), num("Peak received"), num("Orders retried"),
      num("Send errors"), num("Staging used")],
    summary.sets.map((set) => ({
      key: JSON.stringify([set.fleet, set.member, set.member_guid, set.set, set.set_guid]),
      cells: [
        set.member, set.set, duration(set.observed_s), number(set.runs), number(set.totals["Files Installed"] || 0),
        bytes(set.totals["Bytes of Files Installed"] || 0), bytes(set.derived.bytes_per_file_installed),
        bytes(set.totals["Packets Received in Bytes"] || 0), bytes(set.totals["Packets Sent in Bytes"] || 0),
        perSecond("in Bytes", set.peak_per_second["Packets Received in Bytes"]),
        percent(set.derived.change_order_retry_ratio), percent(set.derived.packet_send_error_ratio),
        percent(set.derived.staging_use),
      ],
    })),
  );
  fleetConns.update(
    [{ head: "Connection", cls: "name" }, { head: "Seen by", cls: "name" }, { head: "Set", cls: "name" },
      num("Orders received"), num("Dampened"), num("Packets sent"), num("Data sent"), num("Per packet"),
      num("Blocks received"), num("Send errors"), num("Unjoins"), num("Highest backlog")],
    summary.connections.map((conn) => ({
      key: JSON.stringify([conn.fleet, conn.member, conn.member_guid, conn.set, conn.set_guid, conn.connection]),
      cells: [
        arrow(conn.connection), conn.member, conn.set, number(conn.totals["Remote Change Orders Received"] || 0),
        percent(conn.derived.inbound_dampened_ratio), number(conn.totals["Packets Sent"] || 0),
        bytes(conn.totals["Packets Sent in Bytes"] || 0), bytes(conn.derived.bytes_per_packet_sent),
        bytes(conn.totals["Fetch Blocks Received in Bytes"] || 0), percent(conn.derived.packet_send_error_ratio),
        number(conn.totals.Unjoins || 0), number(conn.derived.backlog_max),
      ],
    })),
  );

  const { rows = [], bucket_s: width, start } = summary.series || {};
  const fleets = new Set(rows.map((row) => row.fleet));
  const tables = [...new Set(rows.map((row) => row.counter))].map((counter) => {
    const columns = rows.filter((row) => row.counter === counter);
    const table = new Table(`${counter}, every ${duration(width)}`, "tight");
    table.update(
      [{ head: "From", cls: "name" }, ...columns.map((row) => num(fleets.size > 1 ? `${row.fleet}: ${row.member} (${row.set})` : `${row.member} (${row.set})`))],
      columns[0].values.map((_, i) => ({
        key: i,
        cells: [moment(new Date(new Date(start).getTime() + i * width * 1000).toISOString()),
          ...columns.map((row) => number(row.values[i]))],
      })),
    );
    return table.node;
  });
  byId("fleet-series").hidden = !tables.length;
  byId("fleet-series").querySelector("div").replaceChildren(...tables);
}

// ---- asking the agent

async function get(path) {
  const response = await fetch(path, { signal: AbortSignal.timeout(10000) });
  if (response.status === 404) return null;
  if (!response.ok) throw new Error(`${path} answered ${response.status}`);
  return response.json();
}

async function poll() {
  try {
    if (!document.hidden) {
      const [status, counters, fleet] = await Promise.all([get("/api/status"), get("/api/counters"), get("/api/fleet")]);
      showStatus(status);
      showFleet(fleet);
      showCounters(counters);
    }
    byId("lost").hidden = true;
  } catch {
    setText(byId("lost"), "The agent does not answer. What is below is the last that was heard; trying again.");
    byId("lost").hidden = false;
    before = null;
  }
  setTimeout(poll, POLL_MS);
}

async function pollSummary() {
  try {
    showSummary(await get("/api/summary"));
  } catch {
    // said by poll() where the agent is away; a summary that cannot be read leaves the one before
  }
  setTimeout(pollSummary, SUMMARY_MS);
}

byId("matrix").append(matrix.node);
byId("fleet-health").append(fleetHealth.node);
byId("fleet-members").append(fleetMembers.node);
byId("fleet-conns").append(fleetConns.node);
document.addEventListener("visibilitychange", () => { before = null; });
poll();
pollSummary();
