// One replica set of this member.

import { byId, bytes, duration, el, Figures, Kept, moment, NONE, number, perSecond, Pill, SET_STATES, setText } from "./pieces.js";

let serial = 0;

// How much of some room is taken.
class Room {
  constructor(what, name) {
    this.what = what;
    this.meter = el("meter", { min: 0, "aria-label": `${what} of ${name} in use` });
    this.used = el("span");
    this.free = el("span", { className: "muted" });
    this.node = el("div", { className: "staging", hidden: true }, el("div", { className: "text" }, this.used, this.free), this.meter);
  }
  show(room) {
    const quota = room?.quota_kib;
    this.node.hidden = !quota;
    if (!quota) return;
    const { used_kib: used, free_kib: free = Math.max(quota - used, 0) } = room;
    Object.assign(this.meter, { max: quota, high: quota * 0.95, low: quota * 0.8, optimum: 0, value: used });
    setText(this.used, `${this.what}: ${bytes(used * 1024)} of ${bytes(quota * 1024)} in use`);
    setText(this.free, `${bytes(free * 1024)} free`);
  }
}

class ReplicaSet {
  constructor(name) {
    serial += 1;
    this.title = el("h2", { id: `set-${serial}`, textContent: name });
    this.pill = new Pill();
    this.where = el("p", { className: "muted" });
    this.error = el("p", { className: "notice bad", hidden: true });
    this.lastError = el("p", { className: "notice", hidden: true });
    this.figures = new Figures();
    this.rooms = ["Staging space", "Disk of the tree", "Kept of conflicts", "Kept of deletions"].map((what) => new Room(what, name));
    this.node = el(
      "section",
      { className: "card", "aria-labelledby": `set-${serial}` },
      el("div", { className: "head" }, this.title, this.pill.node, this.where),
      this.error,
      this.lastError,
      this.figures.node,
      ...this.rooms.map((room) => room.node),
    );
  }

  show(set, at) {
    const state = SET_STATES[set.state] || ["idle", set.state];
    this.pill.set(set.error ? ["bad", state[1]] : set.stops ? ["bad", `${state[1]}, not joined`] : state);
    setText(this.where, [set.type, set.root, set.connections ? "" : "no connections"].filter(Boolean).join(" · "));
    this.error.hidden = !set.error;
    setText(this.error, set.error || "");
    this.lastError.hidden = !set.last_error;
    setText(this.lastError, set.last_error ? `Last error, ${moment(set.last_error.time)}: ${set.last_error.text}` : "");

    const table = set.idtable || {};
    const pending = set.pending || {};
    const waiting = ["aging", "local", "inbound", "outbound"].reduce((sum, key) => sum + (pending[key] || 0), 0);
    const kinds = Object.entries(pending).filter(([, count]) => count).map(([key, count]) => `${number(count)} ${key}`);
    const lag = set.figures["Journal Lag in Seconds"];
    if (lag) kinds.push(`local changes are ${duration(lag)} behind`);
    const now = this.rates(set.figures, at);
    this.figures.update([
      ["Files", number(table.files), `${number(table.folders)} folders`],
      ["Pending", number(waiting), kinds.join(", ") || "nothing waits"],
      ["Tombstones", number(table.tombstones), "deleted, still remembered"],
      ["Conflicts kept", number(set.conflicts?.kept), set.conflicts?.newest ? `the last ${moment(set.conflicts.newest)}` : "none"],
      ["Files installed", number(set.figures["Files Installed"]), now("Files Installed")],
      ["Data received", bytes(set.figures["Packets Received in Bytes"]), now("Packets Received in Bytes")],
      ["Data sent", bytes(set.figures["Packets Sent in Bytes"]), now("Packets Sent in Bytes")],
    ]);

    const { staging, disk, conflicts, deleted } = set;
    [staging, disk && { used_kib: disk.size_kib - disk.free_kib, quota_kib: disk.size_kib, free_kib: disk.free_kib }, conflicts, deleted]
      .forEach((room, i) => this.rooms[i].show(room));
  }

  // How fast each of them grows, since they were last others.
  rates(figures, at) {
    const before = this.before;
    this.before = { figures, at };
    const step = before ? at - before.at : 0;
    return (name) => (step > 0 ? perSecond(name, Math.max(0, figures[name] - before.figures[name]) / step) : NONE);
  }
}

export const sets = new Kept(byId("sets"), (name) => new ReplicaSet(name));
