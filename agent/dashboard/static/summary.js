// The summary that Spark made.

import { arrow, byId, bytes, duration, moment, number, perSecond, percent, setText, Table } from "./pieces.js";

const fleetMembers = new Table("Replica sets of all members", "dense");
const fleetHealth = new Table("What is not well", "dense");
const fleetConns = new Table("Connections of all members", "dense");
let shown = "";

export function showSummary(summary) {
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

byId("fleet-health").append(fleetHealth.node);
byId("fleet-members").append(fleetMembers.node);
byId("fleet-conns").append(fleetConns.node);
