// The directory that the topology comes from: the servers that this member reads from, how far other members are, and the
// server of it that runs in the process of this agent.

import { byId, el, moment, NONE, number, Pill, setText, Table } from "./pieces.js";

const num = (head) => ({ head, cls: "num" });
const name = (head) => ({ head, cls: "name" });
const wide = (head) => ({ head, cls: "wide" });
const pill = (one) => ({ pill: [one.state, one.words] });

// A table with what is to be said of rows that there is no room for; it is hidden where there are none.
class Part {
  constructor(id, caption, columns, more, cells) {
    Object.assign(this, { columns, more, cells });
    this.node = byId(id);
    this.table = new Table(caption, "dense stack");
    this.rest = el("p", { className: "muted", hidden: true });
    this.node.append(this.table.node, this.rest);
  }
  show(part) {
    this.node.hidden = !part?.rows.length;
    if (!part) return;
    this.table.update(this.columns, part.rows.map((one, index) => ({ key: `${index} ${one.name || one.server}`, cells: this.cells(one) })));
    this.rest.hidden = !part.left_out;
    setText(this.rest, `${number(part.left_out)} ${this.more}`);
  }
}

const servers = new Part("directory-servers", "Servers that this member may read from, in their order",
  [name("Server"), { head: "State" }, name("Site"), { head: "Read from since" }, { head: "Last answer" }, wide("Problem")],
  "more servers are not shown.",
  (one) => [one.server, pill(one), one.site || NONE, moment(one.since), moment(one.answered), one.problem || NONE]);
const members = new Part("directory-members", "What this member and its partners have read",
  [name("Member"), { head: "State" }, name("Generation"), { head: "Has it since" }, name("Reads from")],
  "more members are not shown; those with older generations come first.",
  (one) => [one.name, pill(one), one.generation, moment(one.since), one.server]);
const partitions = new Part("directory-partitions", "Partitions on this server",
  [name("Partition"), { head: "State" }, name("Owner"), name("Last number"), name("Purged up to")],
  "more partitions are not shown; those with which something is wrong come first.",
  (one) => [one.name, pill(one), one.owner, one.last, one.purged]);
const others = new Part("directory-others", "Other directory servers",
  [name("Server"), { head: "State" }, name("Address"), num("Messages wait"), num("Changes behind"), wide("Acknowledged up to"),
    { head: "Acknowledged" }, { head: "Last heard" }, wide("Problem")],
  "more servers are not shown; those with which something is wrong come first.",
  (one) => [one.name, pill(one), one.address, number(one.waiting), number(one.behind), one.acknowledged || NONE,
    moment(one.acknowledged_at), moment(one.heard), one.problem || NONE]);
const hosts = new Part("directory-hosts", "Hosts that read from this server",
  [name("Host"), { head: "State" }, name("Has generation"), { head: "Has it since" }, { head: "Last asked" }],
  "more hosts are not shown; those that ask and do not have the newest generation come first.",
  (one) => [one.name, pill(one), one.generation, moment(one.since), moment(one.asked)]);

const overall = new Pill();
const own = new Pill();
byId("directory-pill").append(overall.node);
byId("directory-own-pill").append(own.node);
let before = null;

function showProblem(id, text) {
  byId(id).hidden = !text;
  setText(byId(id), text || "");
}

function showReading(reading) {
  const said = reading && [
    reading.from ? `read from ${reading.from} since ${moment(reading.since)}` : "read from no server",
    `generation ${reading.in_force}${reading.taken ? ` since ${moment(reading.taken)}` : ""}`,
    `last answer ${reading.answered ? moment(reading.answered) : "not since the start"}`,
  ];
  setText(byId("directory-told"), said ? said.join(" · ") : "The topology does not come from it.");
  showProblem("directory-problem", reading?.problem);
  servers.show(reading?.servers);
  members.show(reading?.members);
}

function showServer(server) {
  byId("directory-own").hidden = !server;
  if (!server) return;
  setText(byId("directory-own-title"), server.name ? `Directory server ${server.name}, on this host` : "Directory server of this host");
  own.set([server.state, server.words]);
  const count = server.reading_count;
  setText(byId("directory-own-told"), server.name ? [
    `generation ${server.generation}${server.generation_since ? ` since ${moment(server.generation_since)}` : ""}`,
    `runs since ${moment(server.started)}`,
    `${number(server.members)} members`,
    `asked by ${number(count.current + count.other)} hosts, ${number(count.other)} of them with another generation`,
  ].join(" · ") : "");
  showProblem("directory-own-problem", server.problem);
  partitions.show(server.partitions);
  others.show(server.others);
  hosts.show(server.hosts);
}

export function showDirectory(directory) {
  byId("directory").hidden = !directory;
  if (!directory) return;
  overall.set([directory.state, directory.words]);
  showReading(directory.reading);
  showServer(directory.server);
  if (before !== null && before !== directory.words) setText(byId("announce"), `Directory: ${directory.words}`);
  before = directory.words;
}
