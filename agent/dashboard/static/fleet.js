// What is wrong, who has joined whom, each partner.

import { arrow, byId, bytes, el, few, Kept, moment, NONE, number, Pill, seconds, setText, STATES, Table } from "./pieces.js";

const matrix = new Table("Who sends to whom: from the member of the row to the one of the column", "dense matrix");
byId("matrix").append(matrix.node);

// The kind of its pill, what it says, and what of that there is room for in a matrix.
function stateOf(cell) {
  if (!cell) return ["none", NONE, NONE];
  if (cell.joined === null) return ["idle", "not known", "?"];
  const waits = cell.backlog ? `, ${number(cell.backlog)} wait` : "";
  const few_wait = cell.backlog ? `${few(cell.backlog)} wait` : "";
  if (!cell.joined) return cell.scheduled ? ["bad", `not joined${waits}`, few_wait || "not joined"] : ["idle", `closed${waits}`, few_wait || "closed"];
  const took = cell.latency_p50_s === null ? "" : seconds(cell.latency_p50_s);
  return [cell.backlog ? "busy" : "good", `joined${took && ", "}${took}${waits}`, few_wait || took || "joined"];
}

// The state of a connection as its session has it.
function sessionOf(cell) {
  const [kind, words] = STATES[cell.state] || ["idle", cell.state];
  return [cell.why && cell.scheduled && !cell.joined ? "bad" : kind, words];
}

const waits = (many, size) => number(many) + (size ? ` (${bytes(size)})` : "");

class Partner {
  constructor(name) {
    this.name = name;
    this.pill = new Pill();
    this.told = el("span", { className: "muted" });
    this.node = el("details", { className: "partner" },
      el("summary", {}, el("span", { className: "name", textContent: name }), this.pill.node, this.told));
    this.node.addEventListener("toggle", () => this.showConnections());
  }

  show(one) {
    this.one = one;
    const away = one.wanted - one.joined;
    const waiting = one.backlog_in + one.backlog_out;
    this.pill.set(away ? ["bad", `${away} of ${one.wanted} not joined`] : !one.wanted ? ["idle", "closed"] : waiting ? ["busy", "joined"] : ["good", "joined"]);
    setText(this.told, [
      one.since && `since ${moment(one.since)}`,
      `${waits(one.backlog_in, one.bytes_in)} to come, ${waits(one.backlog_out, one.bytes_out)} to send`,
      one.oldest && `the oldest waits ${one.oldest}`,
      one.latency_p50_s !== null && `half of its changes within ${seconds(one.latency_p50_s)}, 95 % within ${seconds(one.latency_p95_s)}`,
      one.clock_offset_s !== null && `clock ${seconds(Math.abs(one.clock_offset_s))} ${one.clock_offset_s < 0 ? "behind" : "ahead"}`,
    ].filter(Boolean).join(" · "));
    this.showConnections();
    this.announce();
  }

  // Made when somebody looks: a member may have a thousand partners.
  showConnections() {
    if (!this.node.open) return;
    if (!this.conns) {
      this.conns = new Table(`Connections with ${this.name}`, "dense stack");
      this.node.append(this.conns.node);
    }
    this.conns.update(
      [{ head: "Connection", cls: "name" }, { head: "Set", cls: "name" }, { head: "State" }, { head: "Backlog", cls: "num" },
        { head: "Oldest since" }, { head: "Since" }, { head: "Joined at" }, { head: "Half within", cls: "num" }, { head: "95 % within", cls: "num" },
        { head: "Why", cls: "wide" }],
      this.one.connections.map((cell) => ({
        key: `${cell.set}/${cell.connection}`,
        cells: [arrow(cell.connection), cell.set, { pill: sessionOf(cell) }, waits(cell.backlog, cell.backlog_bytes), moment(cell.oldest), moment(cell.since),
          moment(cell.last_join_time), seconds(cell.latency_p50_s), seconds(cell.latency_p95_s), cell.why || NONE],
      })),
    );
  }

  announce() {
    const states = new Map(this.one.connections.map((cell) => [`${cell.set}, ${cell.connection}`, sessionOf(cell)[1]]));
    const news = [...states].filter(([key, words]) => this.states?.has(key) && this.states.get(key) !== words);
    this.states = states;
    if (news.length) setText(byId("announce"), news.map(([key, words]) => `${key}: ${words}`).join(". "));
  }
}

const partners = new Kept(byId("partner-rows"), (name) => new Partner(name));

function showPartners() {
  const sought = byId("partner-find").value.trim().toLowerCase();
  byId("partners").hidden = !partners.all.size;
  byId("partner-search").hidden = partners.all.size < 10;
  for (const [name, one] of partners.all) one.node.hidden = !name.toLowerCase().includes(sought);
}

byId("partner-find").addEventListener("input", showPartners);

export const partner = {
  show(name, one) {
    const known = partners.all.has(name);
    partners.show(name, one);
    if (!known) showPartners();
  },
  gone(name) {
    partners.gone(name);
    showPartners();
  },
};

export function showFleet(fleet) {
  setText(byId("sentence"), fleet.sentence);
  const list = byId("wrong");
  list.hidden = !fleet.wrong.length;
  list.replaceChildren(...fleet.wrong.map((one) => el("li", {},
    el("p", {}, el("strong", { textContent: one.who }), ` ${one.what}`),
    el("p", { className: "todo" },
      [one.since && `Since ${moment(one.since)}.`, one.advice].filter(Boolean).join(" "),
      ...(one.event ? [" ", el("a", { href: `/events#${one.event}`, textContent: `Event ${one.event}` })] : [])))));
  byId("wrong-more").hidden = !fleet.wrong_left_out;
  setText(byId("wrong-more"), `${number(fleet.wrong_left_out)} more things are wrong.`);
}

export function showMatrix(seen) {
  byId("matrix").hidden = seen.members.length < 2;
  byId("matrix-more").hidden = !seen.left_out;
  setText(byId("matrix-more"), `${number(seen.left_out)} more members are not shown: with whom nothing is known to be wrong, or whom no topology of this member has.`);
  matrix.update(
    [{ head: "From", cls: "name" }, ...seen.members.map((name) => ({ head: name }))],
    seen.members.map((from) => ({
      key: from,
      cells: [from, ...seen.members.map((to) => ({ pill: stateOf(seen.matrix[from]?.[to]) }))],
    })),
  );
}
