// Keeps a page up to date from the stream of events, and draws its charts. Everything is set as text, never as HTML.
"use strict";

const STATES = ["ready", "taken", "delayed", "buried"];
const RATES = ["put", "take", "ack", "release", "bury"];
const POINTS = 120;
const SVG = "http://www.w3.org/2000/svg";

const shown = (n) => n.toLocaleString("en-US", { maximumFractionDigits: n < 10 && n % 1 ? 1 : 0 });

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
    this.at = null;
    new ResizeObserver(() => this.draw()).observe(this.plot);
    this.plot.addEventListener("pointermove", (event) => this.point(event));
    this.plot.addEventListener("pointerleave", () => { this.at = null; this.draw(); });
  }

  add(point) {
    this.points.push(point);
    if (this.points.length > POINTS) this.points.shift();
    this.draw();
  }

  point(event) {
    const box = this.plot.getBoundingClientRect();
    const share = (event.clientX - box.left) / box.width;
    const from = POINTS - this.points.length;
    this.at = Math.min(Math.max(Math.round(share * (POINTS - 1)) - from, 0), this.points.length - 1);
    this.draw();
  }

  draw() {
    const { clientWidth: width, clientHeight: height } = this.plot;
    if (!width) return;
    const low = height - 18, high = 18;
    const values = this.points.flatMap((point) => this.series.map((_, i) => point[this.offset + i]));
    const top = ceiling(Math.max(0, ...values));
    const x = (i) => ((POINTS - this.points.length + i) / (POINTS - 1)) * width;
    const y = (value) => low - (value / top) * (low - high);
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    for (const share of [0, 0.5, 1]) {
      element(svg, "line", { x1: 0, x2: width, y1: y(top * share), y2: y(top * share) });
      if (share) element(svg, "text", { x: 2, y: y(top * share) - 3 }).textContent = shown(top * share) + this.unit;
    }
    element(svg, "text", { x: 2, y: height - 4 }).textContent = "2 min ago";
    element(svg, "text", { x: width - 2, y: height - 4, "text-anchor": "end" }).textContent = "now";
    this.series.forEach((name, i) => this.line(svg, name, this.offset + i, x, y, low));
    if (this.at !== null && this.points[this.at]) {
      element(svg, "line", { class: "cross", x1: x(this.at), x2: x(this.at), y1: high, y2: low });
    }
    this.plot.replaceChildren(svg);
    this.tell();
  }

  line(svg, name, column, x, y, low) {
    if (this.points.length < 2) return;
    const path = this.points.map((point, i) => `${i ? "L" : "M"}${x(i).toFixed(1)} ${y(point[column]).toFixed(1)}`).join("");
    const last = this.points.length - 1;
    element(svg, "path", { class: `area ${name}`, d: `${path}L${x(last).toFixed(1)} ${low}L${x(0).toFixed(1)} ${low}Z` });
    element(svg, "path", { class: name, d: path });
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

class Page {
  constructor(stream) {
    this.charts = [...document.querySelectorAll(".chart")].map((figure) => new Chart(figure));
    this.rows = new Map([...document.querySelectorAll("[data-tube]")].map((row) => [row.dataset.tube, row]));
    this.tubes = new Map();
    this.total = null;
    this.time = 0;
    this.pulse = document.querySelector("[data-pulse]");
    const source = new EventSource(stream);
    source.addEventListener("counters", (event) => this.counters(JSON.parse(event.data)));
    source.addEventListener("open", () => this.say("live", false));
    source.addEventListener("error", () => this.say("reconnecting", true));
    addEventListener("pagehide", () => source.close());
  }

  say(text, lost) {
    if (!this.pulse) return;
    this.pulse.hidden = false;
    this.pulse.classList.toggle("lost", lost);
    this.pulse.lastElementChild.textContent = text;
  }

  counters({ at, tubes, gone, total }) {
    const seconds = this.time ? at - this.time : 0;  // the server's clock: messages may be late, samples are not
    for (const name of gone) this.rows.get(name)?.classList.add("gone");
    // A tube may be named as something that every object has, such as constructor.
    for (const [name, row] of this.rows) this.row(row, name, Object.hasOwn(tubes, name) ? tubes[name] : undefined, seconds);
    if (this.total && seconds) {
      const rates = RATES.map((rate) => Math.max(0, (total[rate] - this.total[rate]) / seconds));
      const point = [Date.now() / 1000, ...STATES.map((state) => total[state]), ...rates];
      for (const chart of this.charts) chart.add(point);
    }
    for (const place of document.querySelectorAll("[data-total]")) place.textContent = shown(total[place.dataset.total]);
    this.total = total;
    this.time = at;
  }

  row(row, name, counts, seconds) {
    const before = this.tubes.get(name);
    const newest = counts ?? before;
    if (!newest) return;
    if (counts) {
      for (const cell of row.querySelectorAll("[data-count]")) this.cell(cell, counts[cell.dataset.count]);
      this.tubes.set(name, counts);
    }
    if (before && seconds) {
      for (const cell of row.querySelectorAll("[data-rate]")) {
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

const stream = document.querySelector("[data-stream]");
if (stream) new Page(stream.dataset.stream);

// One question at a time, and Escape takes it back.
const questions = () => document.querySelectorAll("details.confirm[open]");
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") questions().forEach((question) => { question.open = false; question.firstElementChild.focus(); });
});
document.addEventListener("click", (event) => {
  questions().forEach((question) => { if (!question.contains(event.target)) question.open = false; });
});
