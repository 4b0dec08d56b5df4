// Keeps a page up to date: counters and charts from the stream of events, everything else by asking the server for the
// page again. Values are set as text; what is taken over from a page is what the server has escaped.
"use strict";

const STATES = ["ready", "taken", "delayed", "buried"];
const RATES = ["put", "take", "ack", "release", "bury"];
const LIVE_SPAN = 120;
const REFRESH_MS = 2000;
const ROWS = 50;
const SVG = "http://www.w3.org/2000/svg";

const shown = (n) => n.toLocaleString("en-US", { maximumFractionDigits: n < 10 && n % 1 ? 1 : 0 });
const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];

function element(parent, name, attributes = {}) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  parent.append(made);
  return made;
}

// A round number at or above the largest value, so that the scale seldom moves.
function ceiling(value) {
  if (value <= 4) return 4;
  const step = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 5, 8, 10].map((n) => n * step).find((n) => n >= value);
}

class Chart {
  constructor(figure) {
    this.figure = figure;
    this.plot = figure.querySelector(".plot");
    this.series = JSON.parse(figure.dataset.series);
    this.offset = Number(figure.dataset.offset);
    this.points = JSON.parse(figure.dataset.points);
    this.unit = figure.dataset.unit;
    this.span = Number(figure.dataset.span);
    this.at = null;
    new ResizeObserver(() => this.draw()).observe(this.plot);
    this.plot.addEventListener("pointermove", (event) => this.point(event));
    this.plot.addEventListener("pointerleave", () => { this.at = null; this.draw(); });
  }

  get last() { return this.points.length ? this.points[this.points.length - 1][0] : 0; }

  // A point `seconds` after the last one, by the server's clock.
  add(seconds, values) {
    if (this.span !== LIVE_SPAN) return;
    this.points.push([(this.last || Date.now() / 1000) + seconds, ...values]);
    while (this.points[0][0] < this.last - this.span) this.points.shift();
    this.draw();
  }

  point(event) {
    const box = this.plot.getBoundingClientRect();
    const time = this.last - this.span * (1 - (event.clientX - box.left) / box.width);
    const near = (best, point, i) => (Math.abs(point[0] - time) < Math.abs(this.points[best][0] - time) ? i : best);
    this.at = this.points.length ? this.points.reduce(near, 0) : null;
    this.draw();
  }

  draw() {
    const { clientWidth: width, clientHeight: height } = this.plot;
    if (!width) return;
    const low = height - 18, high = 18;
    const values = this.points.flatMap((point) => this.series.map((_, i) => point[this.offset + i]));
    const top = ceiling(Math.max(0, ...values));
    const x = (point) => (1 - (this.last - point[0]) / this.span) * width;
    const y = (value) => low - (value / top) * (low - high);
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    for (const share of [0, 0.5, 1]) {
      element(svg, "line", { x1: 0, x2: width, y1: y(top * share), y2: y(top * share) });
      if (share) element(svg, "text", { x: 2, y: y(top * share) - 3 }).textContent = shown(top * share) + this.unit;
    }
    element(svg, "text", { x: 2, y: height - 4 }).textContent = this.figure.dataset.from;
    element(svg, "text", { x: width - 2, y: height - 4, "text-anchor": "end" }).textContent = "now";
    this.series.forEach((name, i) => this.line(svg, name, this.offset + i, x, y, low));
    const here = this.points[this.at ?? -1];
    if (here) {
      element(svg, "line", { class: "cross", x1: x(here), x2: x(here), y1: high, y2: low });
      const right = x(here) > width / 2;
      const time = element(svg, "text", { x: x(here) + (right ? -5 : 5), y: high - 6, "text-anchor": right ? "end" : "start" });
      time.textContent = new Date(here[0] * 1000).toLocaleTimeString();
    }
    this.plot.replaceChildren(svg);
    this.tell();
  }

  // One path for each stretch without a gap: nobody wrote the history while no server ran.
  line(svg, name, column, x, y, low) {
    const gap = Math.max(15, this.span / 40);
    const parts = [];
    this.points.forEach((point, i) => {
      if (!i || point[0] - this.points[i - 1][0] > gap) parts.push([]);
      parts[parts.length - 1].push(point);
    });
    for (const part of parts.filter((points) => points.length > 1)) {
      const path = part.map((point, i) => `${i ? "L" : "M"}${x(point).toFixed(1)} ${y(point[column]).toFixed(1)}`).join("");
      const ends = [part[part.length - 1], part[0]].map((point) => `L${x(point).toFixed(1)} ${low}`).join("");
      element(svg, "path", { class: `area ${name}`, d: `${path}${ends}Z` });
      element(svg, "path", { class: name, d: path });
    }
  }

  tell() {
    const point = this.points[this.at ?? this.points.length - 1];
    if (!point) return;
    this.series.forEach((name, i) => {
      const place = this.figure.querySelector(`[data-value="${name}"]`);
      if (place) place.textContent = shown(point[this.offset + i]) + this.unit;
    });
  }
}

function pulse(text, lost) {
  const place = document.querySelector("[data-pulse]");
  if (!place) return;
  place.hidden = false;
  place.classList.toggle("lost", lost);
  place.lastElementChild.textContent = text;
}

class Counters {
  constructor(stream) {
    this.charts = all(".chart").map((figure) => new Chart(figure));
    this.rows = new Map(all("[data-tube]").map((row) => [row.dataset.tube, row]));
    this.tubes = new Map();
    this.total = null;
    this.time = 0;
    const source = new EventSource(stream);
    source.addEventListener("counters", (event) => this.counters(JSON.parse(event.data)));
    source.addEventListener("open", () => pulse("live", false));
    source.addEventListener("error", () => pulse("reconnecting", true));
    addEventListener("pagehide", () => source.close());
  }

  counters({ at, tubes, gone, total }) {
    const seconds = this.time ? at - this.time : 0;  // the server's clock: messages may be late, samples are not
    for (const name of gone) this.rows.get(name)?.classList.add("gone");
    // A tube may be named as something that every object has, such as constructor.
    for (const [name, row] of this.rows) this.row(row, name, Object.hasOwn(tubes, name) ? tubes[name] : undefined, seconds);
    if (this.total && seconds) {
      const rates = RATES.map((rate) => Math.max(0, (total[rate] - this.total[rate]) / seconds));
      for (const chart of this.charts) chart.add(seconds, [...STATES.map((state) => total[state]), ...rates]);
    }
    for (const place of all("[data-total]")) place.textContent = shown(total[place.dataset.total]);
    this.total = total;
    this.time = at;
  }

  row(row, name, counts, seconds) {
    const before = this.tubes.get(name);
    const newest = counts ?? before;
    if (!newest) return;
    if (counts) {
      for (const cell of all("[data-count]", row)) this.cell(cell, counts[cell.dataset.count]);
      this.tubes.set(name, counts);
    }
    if (before && seconds) {
      for (const cell of all("[data-rate]", row)) {
        const rate = cell.dataset.rate;
        this.cell(cell, Math.round(((newest[rate] - before[rate]) / seconds) * 10) / 10);
      }
    }
  }

  cell(cell, value) {
    cell.textContent = shown(value);
    cell.classList.toggle("zero", !value);
  }
}

async function load(address) {
  const answer = await fetch(address, { headers: { accept: "text/html" } });
  if (!answer.ok || answer.redirected) throw new Error("no such page");
  return new DOMParser().parseFromString(await answer.text(), "text/html");
}

// Whether somebody is about to do something in this part of the page.
const inUse = (part) => part.querySelector("details.confirm[open], input:checked") || part.contains(document.activeElement);

function renew(old, fresh) {
  const open = new Set(all("details", old).flatMap((each, i) => (each.open ? [i] : [])));
  all("details", fresh).forEach((each, i) => { each.open = open.has(i); });
  old.replaceChildren(...fresh.childNodes);
}

// Parts with data-live are shown as the server would show them now.
async function refresh() {
  try {
    if (!document.hidden && all("[data-live]").some((part) => !inUse(part))) {
      const fresh = await load(location.href);
      for (const part of all("[data-live]")) {
        const newer = fresh.getElementById(part.id);
        if (newer && !inUse(part)) renew(part, newer);
      }
      if (!stream) pulse("live", false);
    }
  } catch {
    pulse("reconnecting", true);
  }
  setTimeout(refresh, REFRESH_MS);
}

// A search reads some thousand tasks at a time: go on until a page is full.
async function searchOn() {
  let stopped = false;
  for (;;) {
    const nav = document.querySelector("[data-more]"), table = document.querySelector("table.tasks");
    const link = nav?.querySelector("a");
    if (stopped || !link || (table && table.tBodies[0].rows.length >= ROWS)) return;
    const stop = document.createElement("button");
    stop.textContent = "Stop";
    stop.addEventListener("click", () => { stopped = true; stop.remove(); });
    link.replaceWith(stop);
    let fresh;
    try { fresh = await load(link.href); } catch { stop.replaceWith(link); return; }
    const rows = all("table.tasks tbody tr", fresh);
    if (rows.length && table) table.tBodies[0].append(...rows);
    else if (rows.length) document.querySelector("[data-found]").replaceChildren(...fresh.querySelector("[data-found]").childNodes);
    const next = fresh.querySelector("[data-more]");
    if (next) nav.replaceChildren(...next.childNodes);
    else nav.remove();
  }
}

// "3 min ago" grows older.
const UNITS = [[90, 1, "s"], [5400, 60, "min"], [129600, 3600, "h"], [Infinity, 86400, "d"]];
function length(seconds) {
  const [, size, unit] = UNITS.find(([most]) => seconds < most);
  const many = seconds / size;
  return `${many >= 10 ? Math.round(many) : Number(many.toPrecision(2))} ${unit}`;
}
const skew = Date.now() / 1000 - Number(document.documentElement.dataset.now);
function age() {
  const now = Date.now() / 1000 - skew;
  for (const time of all("time[datetime]")) {
    const passed = now - Date.parse(time.dateTime) / 1000;
    time.textContent = passed >= 0 ? `${length(Math.max(1, Math.round(passed)))} ago` : `in ${length(Math.round(-passed) || 1)}`;
  }
}

// The box in the head of a table stands for all of its rows.
function pick(event) {
  const boxes = all('input[name="id"]');
  if (event.target.matches("[data-pick-all]")) boxes.forEach((box) => { box.checked = event.target.checked; });
  const count = boxes.filter((box) => box.checked).length;
  for (const place of all("[data-picked]")) place.textContent = count ? `${shown(count)} selected` : "";
}

const stream = document.querySelector("[data-stream]")?.dataset.stream;
if (stream) new Counters(stream);
if (document.querySelector("[data-live]")) setTimeout(refresh, REFRESH_MS);
searchOn();
setInterval(age, 1000);
for (const box of all("[data-pick-all]")) box.hidden = false;
document.addEventListener("change", pick);

// One question at a time, and Escape takes it back.
const questions = () => all("details.confirm[open]");
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") questions().forEach((question) => { question.open = false; question.firstElementChild.focus(); });
});
document.addEventListener("click", (event) => {
  questions().forEach((question) => { if (!question.contains(event.target)) question.open = false; });
});
