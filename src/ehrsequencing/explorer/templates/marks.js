// Marks: elements, numbers as text, scales and axes. Text always enters the page as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return element;
}
const el = (name, attributes, ...children) => filled(document.createElement(name), attributes, children);
const mark = (name, attributes, ...children) => filled(document.createElementNS(SVG, name), attributes, children);
const byId = (id) => document.getElementById(id);

// ---- numbers as text -----------------------------------------------------------------------------------------------

/** A risk with two significant digits: 12%, 3.1%, 0.35%. */
function percent(risk) {
  const value = 100 * risk;
  if (value > 99 && value < 100) return ">99%";
  if (value >= 9.95) return `${Math.round(value)}%`;
  if (value < 0.01) return value < 0.0005 ? "0%" : "<0.01%";
  return `${Number(value.toPrecision(2))}%`;
}

/** A change of risk in percentage points, with its sign. */
function change(points) {
  const size = Math.abs(100 * points);
  if (size < 0.005) return "0";
  return `${points > 0 ? "+" : "−"}${size.toFixed(size >= 9.95 ? 0 : size >= 0.995 ? 1 : 2)}`;
}

const SIGNS = { up: "▲", down: "▼", level: "●" };
const direction = (points) => (Math.abs(points) < 5e-5 ? "level" : points > 0 ? "up" : "down");

/** A change whose sign is told by its shape as well as by its colour. */
function changeMark(points) {
  const way = direction(points);
  return el("span", { class: `change ${way}` }, el("span", { "aria-hidden": "true" }, SIGNS[way]), ` ${change(points)}`);
}

function duration(days) {
  if (days >= 730.5 || (days >= 365.25 && days % 182.625 === 0)) return counted(Number((days / 365.25).toFixed(1)), "year");
  return counted(days >= 10 ? Math.round(days) : Number(days.toFixed(1)), "day");
}
const counted = (count, noun) => `${grouped(count)} ${noun}${count === 1 ? "" : "s"}`;
const grouped = (count) => count.toLocaleString("en");
const valueText = (value, unit) => `${Number(value.toPrecision(4))}${unit ? ` ${unit}` : ""}`;

function shortened(words, most) {
  const letters = Array.from(words);
  return letters.length <= most ? words : `${letters.slice(0, most - 1).join("").trimEnd()}…`;
}

/** Words in lines of at most so many letters; a longer word is cut. */
function linesOf(words, most) {
  const lines = [""];
  for (const word of words.split(" ")) {
    const longer = `${lines.at(-1)} ${word}`.trim();
    if (longer.length <= most || !lines.at(-1)) lines[lines.length - 1] = shortened(longer, most);
    else lines.push(shortened(word, most));
  }
  return lines;
}

/** A count of patients; a small one is hidden. */
const people = (count) => (count > 0 && count < about.smallest ? `fewer than ${about.smallest}` : grouped(count));

// ---- figures -------------------------------------------------------------------------------------------------------

const scale = (low, high, start, stop) => (value) =>
  start + ((Math.min(Math.max(value, low), high) - low) / (high - low || 1)) * (stop - start);

function ticks(low, high, count = 5) {
  const raw = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((m) => m >= raw * (1 - 1e-9));
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(Number((k * step).toPrecision(12)));
  return found;
}

const line = (x1, y1, x2, y2, style) => mark("line", { x1, y1, x2, y2, class: style });
const words = (x, y, text, style = "") => mark("text", { x, y, class: style }, text);
const pathOf = (pairs, x, y) => pairs.map(([a, b], k) => `${k ? "L" : "M"}${x(a).toFixed(1)} ${y(b).toFixed(1)}`).join("");
const polyline = (pairs, x, y, style) => mark("path", { d: pathOf(pairs, x, y), class: `line ${style}` });
const stepsOf = (pairs) => pairs.flatMap(([a, b], k) => (k ? [[a, pairs[k - 1][1]], [a, b]] : [[a, b]]));

function riskAxis(y, top, left, right) {
  return ticks(0, top, 4).map((tick) => [
    line(left, y(tick), right, y(tick), "grid"), words(left - 6, y(tick) + 4, percent(tick), "end"),
  ]);
}

/** Years for long axes, days for short ones: [days in a unit, its name]. */
const unitOf = (days) => (days >= 730.5 ? [365.25, "years"] : [1, "days"]);

function dayAxis(x, low, high, base, label) {
  const [per, unit] = unitOf(high - low);
  return [
    line(x(low), base, x(high), base, "axis"),
    ticks(low / per, high / per, 6).map((tick) => words(x(tick * per), base + 15, grouped(tick), "mid")),
    words((x(low) + x(high)) / 2, base + 31, `${unit} ${label}`, "mid"),
  ];
}

/** Put a drawn figure into its place: the picture with a sentence for screen readers, and its table. */
function show(id, { width, height, sentence, marks, columns, rows, ...events }) {
  const figure = byId(id), old = figure.querySelector("details");
  const picture = mark("svg", { viewBox: `0 0 ${width} ${height}`, class: "fig", role: "img", "aria-label": sentence, ...events }, marks);
  const twin = el("details", { class: "twin", open: old?.open }, el("summary", {}, "The numbers of this figure"));
  const fill = () => twin.open && !twin.querySelector("table") && twin.append(table(columns, rows()));
  twin.addEventListener("toggle", fill);
  fill();
  figure.replaceChildren(picture, twin);
  return picture;
}

function table(columns, rows, style = "twin") {
  const head = el("tr", {}, columns.map((name) => el("th", { scope: "col" }, name)));
  const body = rows.map((row) => el("tr", {}, row.map((cell, k) => el(k ? "td" : "th", k ? {} : { scope: "row" }, cell))));
  const scrolls = { class: "scroll", tabindex: "0", role: "group", "aria-label": "Table of the figure" };
  return el("div", scrolls, el("table", { class: style }, el("thead", {}, head), el("tbody", {}, body)));
}

/** Lines' names beside their ends, moved apart so that they do not overlap: [height, name, style]. */
function endNames(ends, x, low, high) {
  let last = low - 13;
  const placed = ends.slice().sort((a, b) => a[0] - b[0]).map(([at, name, style]) => [(last = Math.max(at, last + 13)), name, style]);
  const over = Math.max(0, last - high);
  return placed.map(([at, name, style]) => words(x, at - over + 4, shortened(name, 14), style));
}
