// The page of one member: the stream by which it is kept up to date, and its tabs.

import { showCounters, showInstances } from "./counters.js";
import { showDirectory } from "./directory.js";
import "./files.js";
import { partner, showFleet, showMatrix } from "./fleet.js";
import "./history.js";
import { byId, duration, setText } from "./pieces.js";
import { askForToken, needsToken } from "./session.js";
import { sets } from "./sets.js";
import { showSummary } from "./summary.js";
import { showTransfers } from "./transfers.js";

const SILENT_MS = 15000;
const AGAIN_MS = 2000;

// ---- the member, in the title and the icon too

const WORDS = { bad: "Wrong", busy: "At work", good: "All well" };
const MARKS = { bad: "✖", busy: "…", good: "✔", lost: "?" };
let member = null;

function showMember(one) {
  member = one;
  setText(byId("member"), one.member);
  const up = duration((Date.now() - new Date(one.started).getTime()) / 1000);
  setText(byId("process"), `frs ${one.version} · process ${one.pid} · up ${up}`);
  const pill = byId("overall");
  pill.className = `pill ${one.state}`;
  setText(pill.lastElementChild, one.wrong ? `${one.wrong} wrong` : WORDS[one.state]);
  showState(one.state);
}

function showState(state) {
  const count = state === "bad" ? ` ${member.wrong}` : "";
  document.title = `${MARKS[state]}${count} ${member ? member.member : ""} – frs`;
  const icon = document.querySelector("link[rel=icon]");
  const href = state === "good" ? "/icon.svg" : `/icon-${state}.svg`;
  if (icon.getAttribute("href") !== href) icon.setAttribute("href", href);
}

// ---- the stream

const SHOWN = {
  member: showMember, fleet: showFleet, matrix: showMatrix, transfers: showTransfers, directory: showDirectory,
  summary: askSummary, instances: showInstances, counters: showCounters,
};
const KINDS = { set: sets, partner };
const MOVING = /^(member|counters|transfers|set\/.*)$/; // shown anew as time passes: how long, and how fast
let source = null;
let silent = 0;
let again = 0;
let known = new Map();

function show(key, part, at) {
  const cut = key.indexOf("/");
  if (cut < 0) SHOWN[key](part, at);
  else KINDS[key.slice(0, cut)].show(key.slice(cut + 1), part, at);
}

function take(event) {
  const { at, parts, gone } = JSON.parse(event.data);
  if (source.fresh) {
    source.fresh = false;
    for (const key of known.keys()) if (!(key in parts)) gone.push(key); // it went while nobody listened
  }
  for (const key of gone) {
    known.delete(key);
    const cut = key.indexOf("/");
    if (cut > 0) KINDS[key.slice(0, cut)].gone(key.slice(cut + 1));
  }
  for (const [key, part] of known) if (!(key in parts) && MOVING.test(key)) show(key, part, at);
  for (const [key, part] of Object.entries(parts)) {
    known.set(key, part);
    show(key, part, at);
  }
  byId("lost").hidden = true;
  clearTimeout(silent);
  silent = setTimeout(lost, SILENT_MS);
}

function lost() {
  setText(byId("lost"), "The agent does not answer. What is below is the last that was heard; trying again.");
  byId("lost").hidden = false;
  showState("lost");
  clearTimeout(again);
  again = setTimeout(follow, AGAIN_MS);
}

function follow() {
  source?.close();
  clearTimeout(silent);
  const asked = tab === "counters" ? `?${new URLSearchParams({ counters: byId("counter-of").value })}` : "";
  source = new EventSource(`/api/live${asked}`);
  source.fresh = true;
  source.addEventListener("message", take);
  source.addEventListener("error", async () => {
    source.close();
    if (await needsToken()) askForToken(follow);
    else lost();
  });
}

// ---- the summary, which is made now and then

async function askSummary(generated) {
  if (!generated) return showSummary(null);
  try {
    const response = await fetch("/api/summary", { signal: AbortSignal.timeout(10000) });
    if (response.ok) showSummary(await response.json());
  } catch {
    // one that cannot be read leaves the one before
  }
}

// ---- tabs

const tabs = [...document.querySelectorAll("[role=tab]")];
let tab = "";

function choose(name) {
  const chosen = tabs.find((one) => one.dataset.tab === name) || tabs[0];
  const before = tab;
  tab = chosen.dataset.tab;
  for (const one of tabs) {
    one.setAttribute("aria-selected", one === chosen);
    one.tabIndex = one === chosen ? 0 : -1;
    byId(one.getAttribute("aria-controls")).hidden = one !== chosen;
  }
  if (tab === before) return;
  if (before) history.replaceState(null, "", `#${tab}`);
  if (!before || tab === "counters" || before === "counters") follow();
  document.dispatchEvent(new CustomEvent("tab", { detail: tab }));
}

for (const one of tabs) {
  one.addEventListener("click", () => choose(one.dataset.tab));
  one.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = tabs[(tabs.indexOf(one) + step + tabs.length) % tabs.length];
    choose(next.dataset.tab);
    next.focus();
  });
}
byId("counter-of").addEventListener("change", follow);
window.addEventListener("hashchange", () => choose(location.hash.slice(1)));
choose(location.hash.slice(1));
