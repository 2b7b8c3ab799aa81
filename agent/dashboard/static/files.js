// What is told by name, and given back, to whoever has a token: it stays in this page's memory.

import { byId, bytes, el, moment, NONE, number, percent, setText, Table } from "./pieces.js";

const changes = new Table("Recent changes", "dense stack");
const transfers = new Table("Files that are being fetched", "dense stack");
const conflicts = new Table("Kept of conflicts", "dense stack");
const deleted = new Table("Deleted elsewhere, and kept", "dense stack");
byId("file-tables").append(transfers.node, changes.node, conflicts.node, deleted.node);
let token = "";
let shown = null;

async function ask(path, options = {}) {
  const response = await fetch(path, { ...options, headers: { Authorization: `Bearer ${token}` }, signal: AbortSignal.timeout(30000) });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

const said = (text) => setText(byId("file-said"), text);

async function attempt(work) {
  try {
    await work();
  } catch (error) {
    said(error.message);
  }
}

const of = (edition) => (edition?.originator ? `${edition.this_member ? "this member" : edition.originator}, ${moment(edition.time)}` : NONE);

async function list() {
  const found = await ask("/api/files");
  byId("file-tables").hidden = false;
  const wide = (head) => ({ head, cls: "wide" });
  transfers.node.hidden = !found.transfers.length;
  transfers.update([wide("File"), { head: "Set" }, { head: "From" }, { head: "Received", cls: "num" }], found.transfers.map((one) => ({
    key: `${one.set}/${one.path}`,
    cells: [one.path, one.set, one.partner, one.size ? `${percent(one.received / one.size)} of ${bytes(one.size)}` : bytes(one.received)],
  })));
  changes.update([wide("File"), { head: "Set" }, { head: "What" }, { head: "By" }, { head: "When" }], found.changes.map((one, i) => ({
    key: i, cells: [one.path, one.set, one.what, one.by || "another member", moment(one.time)],
  })));
  conflicts.update([wide("File"), { head: "Set" }, { head: "Why", cls: "wide" }, { head: "Size", cls: "num" }, { head: "When" }, { head: "More" }],
    found.conflicts.map((one) => ({
      key: one.id,
      cells: [one.path, one.set, one.reason, bytes(one.size), moment(one.time), { button: ["Show", one.path, () => attempt(() => show(one.id))] }],
    })));
  deleted.update([wide("Deleted by"), { head: "Set" }, { head: "Files", cls: "num" }, { head: "Size", cls: "num" }, { head: "Last" }, { head: "More" }],
    found.deleted.map((one) => ({
      key: one.id,
      cells: [one.by || one.originator, one.set, number(one.files), bytes(one.size), moment(one.last),
        { button: ["Show", `${one.files} files deleted by ${one.by || one.originator}`, () => attempt(() => show(one.id))] }],
    })));
  const left = found.conflicts_left_out + found.deleted_left_out;
  said(left ? `${number(left)} more are kept: frs conflicts list shows them.` : "");
  byId("file-may").textContent = found.rights.includes("restore") ? "You may restore." : "You may look, and not restore.";
  byId("file-restore").disabled = !found.rights.includes("restore");
}

async function show(id) {
  const answer = await ask(`/api/files/show?${new URLSearchParams({ id })}`);
  shown = id;
  const { item, group, files, more } = answer;
  const facts = item
    ? { File: item.path, Set: item.set, Why: item.reason, Kind: item.kind, Size: bytes(item.size), Mode: item.mode, Changed: moment(item.mtime),
      "Kept since": moment(item.time), "Version here": of(item.winner), "Version kept": of(item.loser), Problem: item.error, Place: item.place }
    : { "Deleted by": group.by || group.originator, Set: group.set, Files: number(group.files), Size: bytes(group.size),
      "First ones": files.slice(0, 20).map((one) => one.path).join("\n") + (more || files.length > 20 ? "\n…" : "") };
  byId("file-facts").replaceChildren(...Object.entries(facts).filter(([, value]) => value).map(([name, value]) =>
    el("div", {}, el("dt", { textContent: name }), el("dd", { textContent: value }))));
  setText(byId("file-shown-title"), item ? item.path : `Files deleted by ${group.by || group.originator}`);
  byId("file-shown").hidden = false;
  byId("file-shown-title").focus();
}

async function restore() {
  const answer = await ask("/api/files/restore", { method: "POST", body: JSON.stringify({ id: shown }) });
  byId("file-shown").hidden = true;
  await list();
  said(answer.path ? `Restored: ${answer.path}${answer.excluded ? " (it is not replicated, by the filters of the set)" : ""}`
    : `Restored: ${number(answer.files)} files, ${number(answer.beside)} of them beside others`);
}

byId("file-token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  token = byId("file-token").value.trim();
  attempt(list);
});
byId("file-restore").addEventListener("click", () => attempt(restore));
byId("file-close").addEventListener("click", () => { byId("file-shown").hidden = true; });
