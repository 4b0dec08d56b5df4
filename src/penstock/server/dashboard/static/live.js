// Keeps a page up to date by asking the server for it again every two seconds.
// Values are set as text; HTML comes only from pages, where the server has escaped it.
"use strict";

const REFRESH_MS = 2000;
const ROWS = 50;
const SVG = "http://www.w3.org/2000/svg";

const shown = (n) => n.toLocaleString("en-US", { maximumFractionDigits: n < 10 && n % 1 ? 1 : 0 });
const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];

// What a chart shows under the pointer: a line, the time, and the values of that time in the legend.
let pointer = null;
function showPoint() {
  for (const cross of all(".cross")) cross.remove();
  const plot = pointer && document.elementFromPoint(pointer.clientX, pointer.clientY)?.closest(".plot");
  for (const figure of all(".chart")) {
    const points = JSON.parse(figure.dataset.points), inside = plot && figure.contains(plot), at = figure.querySelector(".at");
    if (!points.length) continue;
    let point = points[points.length - 1];
    if (inside) {
      const box = plot.getBoundingClientRect(), { span, until } = figure.dataset;
      const share = (pointer.clientX - box.left) / box.width, time = until - span * (1 - share);
      point = points.reduce((best, each) => (Math.abs(each[0] - time) < Math.abs(best[0] - time) ? each : best));
      const x = 1000 * (1 - (until - point[0]) / span), cross = document.createElementNS(SVG, "line");
      cross.setAttribute("class", "cross");
      for (const [name, value] of [["x1", x], ["x2", x], ["y1", 0], ["y2", 100]]) cross.setAttribute(name, value);
      plot.querySelector("svg").append(cross);
    }
    if (at) at.textContent = inside ? new Date(point[0] * 1000).toLocaleTimeString() : "";
    all(".legend b", figure).forEach((place, i) => { place.textContent = shown(point[1 + i]) + figure.dataset.unit; });
  }
}

function pulse(text, lost) {
  const place = document.querySelector("[data-pulse]");
  if (!place) return;
  place.hidden = false;
  place.classList.toggle("lost", lost);
  place.lastElementChild.textContent = text;
}

async function load(address) {
  const answer = await fetch(address, { headers: { accept: "text/html" } });
  if (!answer.ok || answer.redirected) throw new Error("no such page");
  return new DOMParser().parseFromString(await answer.text(), "text/html");
}

// Whether the user is doing something in this part of the page.
const inUse = (part) => part.querySelector("details.confirm[open], input:checked") || part.contains(document.activeElement);

function replaceContent(old, fresh) {
  const open = new Set(all("details", old).flatMap((each, i) => (each.open ? [i] : [])));
  all("details", fresh).forEach((each, i) => { each.open = open.has(i); });
  old.replaceChildren(...fresh.childNodes);
}

// Replaces the parts with data-live, and the navigation, by what the server shows now.
async function refresh() {
  try {
    if (!document.hidden && all("[data-live]").some((part) => !inUse(part))) {
      const fresh = await load(location.href);
      for (const part of all("[data-live], #navigation")) {
        const newer = fresh.getElementById(part.id);
        if (newer && !inUse(part)) replaceContent(part, newer);
      }
      showPoint();
      pulse("live", false);
    }
  } catch {
    pulse("reconnecting", true);
  }
  setTimeout(refresh, REFRESH_MS);
}

// A search reads a few thousand tasks at a time: continue until a page is full.
async function continueSearch() {
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

// Keep "3 min ago" up to date.
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

// The checkbox in the head of a table selects all rows.
function pick(event) {
  const boxes = all('input[name="id"]');
  if (event.target.matches("[data-pick-all]")) boxes.forEach((box) => { box.checked = event.target.checked; });
  const count = boxes.filter((box) => box.checked).length;
  for (const place of all("[data-picked]")) place.textContent = count ? `${shown(count)} selected` : "";
}

if (document.querySelector("[data-live]")) setTimeout(refresh, REFRESH_MS);
continueSearch();
setInterval(age, 1000);
for (const box of all("[data-pick-all]")) box.hidden = false;
document.addEventListener("change", pick);
for (const name of ["pointermove", "pointerleave"]) {
  document.documentElement.addEventListener(name, (event) => {
    const was = pointer;
    pointer = name === "pointermove" && event.target.closest(".plot") ? event : null;
    if (pointer || was) showPoint();
  });
}

// One question is open at a time; Escape closes it.
const questions = () => all("details.confirm[open]");
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") questions().forEach((question) => { question.open = false; question.firstElementChild.focus(); });
});
document.addEventListener("click", (event) => {
  questions().forEach((question) => { if (!question.contains(event.target)) question.open = false; });
});
