// Staging files as they come in: how fast, and how long it will take.

import { byId, bytes, duration, NONE, percent, perSecond, Table } from "./pieces.js";

const table = new Table("Transfers to this member", "dense stack");
byId("transfers").append(table.node);
let before = new Map();

export function showTransfers(all, at) {
  byId("transfers").hidden = !all.length;
  const now = new Map();
  table.update(
    [{ head: "From", cls: "name" }, { head: "Set", cls: "name" }, { head: "Received", cls: "num" }, { head: "Of", cls: "num" },
      { head: "Rate", cls: "num" }, { head: "Time left", cls: "num" }],
    all.map((one) => {
      const known = before.get(one.id);
      const step = known ? at - known.at : 0;
      const rate = step > 0 ? Math.max(0, one.received - known.received) / step : known?.rate || 0;
      now.set(one.id, { received: one.received, at, rate });
      return {
        key: one.id,
        cells: [one.partner, one.set, `${bytes(one.received)}${one.size ? ` (${percent(one.received / one.size)})` : ""}`,
          one.size ? bytes(one.size) : NONE, perSecond("in Bytes", rate),
          rate && one.size ? duration((one.size - one.received) / rate) : NONE],
      };
    }),
  );
  before = now;
}
