// Pieces that the page is made of, and how values are written. Everything shown is set as text, never as HTML: names,
// paths and errors come from users.

export const NONE = "–";

export const STATES = {
  joined: ["good", "joined"],
  vvjoin: ["busy", "initial sync"],
  joining: ["busy", "joining"],
  start_join: ["busy", "starting to join"],
  need_join: ["busy", "about to join"],
  unjoined: ["idle", "unjoined"],
};
export const SET_STATES = {
  online: ["good", "online"],
  starting: ["busy", "starting"],
  seeding: ["busy", "seeding"],
  stopped: ["idle", "stopped"],
};

export const byId = (id) => document.getElementById(id);

export function el(tag, props = {}, ...kids) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name in node && name !== "role") node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...kids);
  return node;
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// ---- how values are written

export const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
export const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
export const few = (value) => compact.format(value);
export const number = (value) => (value === null || value === undefined ? NONE : whole.format(value));

export function bytes(value) {
  if (value === null || value === undefined) return NONE;
  let unit = 0;
  while (value >= 1024 && unit < 5) {
    value /= 1024;
    unit += 1;
  }
  return `${value >= 100 || unit === 0 ? whole.format(value) : short.format(value)} ${["B", "KiB", "MiB", "GiB", "TiB", "PiB"][unit]}`;
}

export function percent(value) {
  if (value === null || value === undefined) return NONE;
  return value > 0 && value < 0.0001 ? "< 0.01 %" : `${short.format(value * 100)} %`;
}

const countsBytes = (counter) => counter.endsWith("in Bytes") || counter.startsWith("Bytes of");
export const amount = (counter, value) =>
  counter.endsWith("in Bytes") ? bytes(value) : counter.endsWith("in Seconds") ? duration(value) : number(value);
export const perSecond = (counter, value) =>
  value ? `${countsBytes(counter) ? bytes(value) : short.format(value)}/s` : NONE;

export function moment(iso) {
  const date = new Date(iso);
  if (!iso || Number.isNaN(date.getTime())) return NONE;
  const two = (part) => String(part).padStart(2, "0");
  return (
    `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ` +
    `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`
  );
}

export function duration(seconds) {
  if (!Number.isFinite(seconds) || seconds < 0) return NONE;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor(seconds / 60) % 60} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${whole.format(seconds / 86400)} days`;
}

export const arrow = (name) => String(name).replace("->", " → ");

// ---- pieces of the page that are made once and then kept up to date

export class Pill {
  constructor(tag = "span") {
    this.words = el("span");
    this.node = el(tag, { className: "pill idle" }, el("span", { className: "dot", "aria-hidden": "true" }), this.words);
  }
  // With a short form that is seen, the words themselves are what is read aloud, and shown where one points at it.
  set([kind, words, short]) {
    const name = `pill ${kind}`;
    if (this.node.className !== name) this.node.className = name;
    setText(this.words, words);
    if (short === undefined || this.node.dataset.short === short && this.node.title === words) return;
    this.node.dataset.short = short;
    this.node.title = words;
  }
}

// columns: [{ head, cls }]; rows: [{ key, cells }], the first cell is the row's heading. A cell is a text,
// { pill: [kind, words] } or { button: [words, of what, what to do] }, which stays as it is first.
export class Table {
  constructor(caption, cls = "", of = "") {
    // The roles are those the elements have anyway; a narrow page lays rows out as blocks, which would lose them.
    this.head = el("tr", { role: "row" });
    this.body = el("tbody", { role: "rowgroup" });
    const thead = el("thead", { role: "rowgroup" }, this.head);
    // Without columns there is no table yet.
    this.table = el("table", { className: cls, role: "table", hidden: true }, el("caption", { textContent: caption }), thead, this.body);
    this.node = el("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": of ? `${caption} of ${of}` : caption }, this.table);
    this.rows = new Map();
    this.heads = "";
  }
  update(columns, rows) {
    const heads = JSON.stringify(columns);
    if (heads !== this.heads) {
      this.heads = heads;
      this.table.hidden = !columns.length;
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
        if (cell.button) {
          if (known.cells[i].firstChild) return;
          const [words, what, act] = cell.button;
          const button = el("button", { type: "button", className: "button", textContent: words, "aria-label": `${words} ${what}` });
          button.addEventListener("click", act);
          known.cells[i].append(button);
        } else if (typeof cell === "object") {
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

export class Figures {
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

export const seconds = (value) => (value === null || value === undefined ? NONE : value < 60 ? `${short.format(value)} s` : duration(value));

// Keeps one object for each key of a map, made when it comes and taken away when it goes; they stay in their order.
export class Kept {
  constructor(parent, make) {
    Object.assign(this, { parent, make, all: new Map(), order: [] });
  }
  show(key, ...what) {
    let one = this.all.get(key);
    if (!one) {
      one = this.make(key);
      this.all.set(key, one);
      let low = 0;
      for (let high = this.order.length; low < high;) {
        const middle = (low + high) >> 1;
        if (this.order[middle] < key) low = middle + 1;
        else high = middle;
      }
      this.parent.insertBefore(one.node, this.all.get(this.order[low])?.node || null);
      this.order.splice(low, 0, key);
    }
    one.show(...what);
  }
  gone(key) {
    this.all.get(key)?.node.remove();
    this.all.delete(key);
    this.order = this.order.filter((one) => one !== key);
  }
}
