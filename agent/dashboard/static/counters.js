// The counters of one set or connection, to be searched.

import { arrow, byId, el, NONE, number, perSecond, setText, Table } from "./pieces.js";

const table = new Table("Counters since the start", "tight");
byId("counter-table").append(table.node);
const AMOUNT = /^KB of |^Backlog in Bytes$| in Seconds$/;
let now = null;
let before = null;

function show() {
  if (!now) return;
  const sought = byId("counter-find").value.trim().toLowerCase();
  const zeros = byId("counter-zeros").checked;
  const step = before && before.instance === now.instance ? now.at - before.at : 0;
  const rows = Object.entries(now.values).filter(([name, value]) => (zeros || value) && name.toLowerCase().includes(sought));
  table.update(
    [{ head: "Counter" }, { head: "Value", cls: "num" }, { head: "Now", cls: "num" }],
    rows.map(([name, value]) => ({
      key: name,
      cells: [name, number(value), step > 0 && !AMOUNT.test(name) ? perSecond(name, Math.max(0, value - before.values[name]) / step) : NONE],
    })),
  );
  setText(byId("counter-count"), `${rows.length} of ${Object.keys(now.values).length} counters of ${now.object}`);
}

export function showCounters(counters, at) {
  before = now;
  now = { ...counters, at };
  byId("counter-of").value = counters.instance;
  show();
}

export function showInstances(names) {
  byId("counter-of").replaceChildren(...names.map((name) => el("option", { value: name, textContent: arrow(name) })));
  if (now) byId("counter-of").value = now.instance;
}

byId("counter-find").addEventListener("input", show);
byId("counter-zeros").addEventListener("change", show);
