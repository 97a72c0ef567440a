// What if: strike a code or a visit through, and the curve moves. The page holds the answers of single removals;
// several are the sum of the single answers, which is said.

const MOST_SHOWN = 60;
const codeCount = about.codes.length;

/** Risks [cause][horizon] without what is struck at a prediction time; null where the page does not hold it. */
function struckAt(row) {
  if (!state.struck.size) return null;
  if (state.struck.size === 1) return removedRisk(state.patient, [...state.struck][0], row);
  return summedRisk(row);
}

/** Risks without several things, as if each changed the log of the cumulative hazard by as much as alone. */
function summedRisk(row) {
  const alone = [...state.struck].map((target) => removedRisk(state.patient, target, row));
  if (alone.includes(null)) return null;
  const scaled = (risk) => Math.log(-Math.log1p(-Math.min(Math.max(risk, 1e-9), 1 - 1e-9)));
  return about.causes.map((_, cause) => about.horizons_days.map((_, horizon) => {
    const start = scaled(riskAt(row, cause, horizon));
    const moved = alone.reduce((sum, risks) => sum + scaled(risks[cause][horizon]) - start, 0);
    return -Math.expm1(-Math.exp(start + moved));
  }));
}
const struckRisk = () => struckAt(rowNow());

// ---- what can be struck --------------------------------------------------------------------------------------------

/** Everything recorded by now: {target, words, detail, effect}, with the largest effects first. */
function candidates() {
  const row = rowNow(), risk = riskAt(row, state.cause, state.horizon), known = recordOf(state.patient).filter((visit) => isKnownBy(visit, row));
  const found = state.kind === "visits" ? visitTargets(known) : codeTargets(known);
  for (const one of found) {
    const without = removedRisk(state.patient, one.target, row);
    one.effect = without ? risk - without[state.cause][state.horizon] : NaN;
  }
  const text = state.filter.trim().toLowerCase();
  const kept = found.filter((one) => !text || `${one.words} ${one.name}`.toLowerCase().includes(text));
  return kept.sort((a, b) => (Math.abs(b.effect) || 0) - (Math.abs(a.effect) || 0) || b.last - a.last);
}

function codeTargets(visits) {
  const seen = new Map();
  for (const visit of visits)
    for (const [code, value] of visit.codes) {
      const one = seen.get(code) ?? { target: code, name: about.codes[code].name, words: about.codes[code].words, times: 0 };
      Object.assign(one, { times: one.times + 1, last: visit.day });
      if (!Number.isNaN(value)) one.value = value;
      seen.set(code, one);
    }
  const detail = (one) => [`${one.times}×, last on day ${grouped(Math.round(one.last))}`, one.value === undefined ? "" : valueText(one.value, about.codes[one.target].unit)];
  return [...seen.values()].map((one) => ({ ...one, detail: detail(one).filter(Boolean).join(" · ") }));
}

const visitTargets = (visits) => visits.map((visit) => ({
  target: codeCount + visit.number, name: "", words: `Visit ${visit.number + 1}, day ${Math.round(visit.day)}`, last: visit.day,
  detail: shortened(visit.codes.map(([code]) => about.codes[code].words).join(", "), 70),
}));

const targetWords = (target) => (target < codeCount ? about.codes[target].words : `visit ${target - codeCount + 1}`);

/** Why a record without the struck codes is unlike any that was seen; empty where it is not. */
function unlikeness() {
  const struck = new Set([...state.struck].filter((target) => target < codeCount));
  const gone = new Set([...state.struck].filter((target) => target >= codeCount).map((target) => target - codeCount));
  const known = recordOf(state.patient).filter((visit) => isKnownBy(visit, rowNow())), left = new Set();
  for (const visit of known) if (!gone.has(visit.number)) for (const [code] of visit.codes) if (!struck.has(code)) left.add(code);
  if (!left.size) return "nothing of the record is left";
  for (const [has, lacks] of about.together) {
    if (!struck.has(lacks)) continue;
    if (has === lacks) return `fewer than ${about.fewest} patients lack “${targetWords(lacks)}”`;
    if (left.has(has)) return `of all who have “${targetWords(has)}”, fewer than ${about.fewest} lack “${targetWords(lacks)}”`;
  }
  return "";
}

// ---- the table -----------------------------------------------------------------------------------------------------

let shownTargets = []; // what ↑ and ↓ move through

function drawWhatIf() {
  const all = candidates(), shown = state.all ? all : all.slice(0, MOST_SHOWN);
  shownTargets = shown.map((one) => one.target);
  if (!shownTargets.includes(state.focus)) state.focus = shownTargets[0] ?? -1;
  const most = Math.max(1e-9, ...all.map((one) => Math.abs(one.effect) || 0));
  byId("targets").replaceChildren(...shown.map((one) => targetRow(one, most)));
  byId("more").hidden = all.length <= shown.length;
  byId("more").textContent = `Show all ${grouped(all.length)}`;
  byId("no-target").hidden = all.length > 0;
}

function targetRow({ target, words: name, name: code, detail, effect }, most) {
  const isStruck = state.struck.has(target);
  const button = el("button", { type: "button", class: "strike", "aria-pressed": String(isStruck), tabindex: target === state.focus ? "0" : "-1", title: code,
    onclick: () => { state.focus = target; strike(target); }, onfocus: () => focusTarget(target, false) }, el("span", {}, shortened(name, 120)));
  const bar = el("span", { class: `bar ${direction(effect || 0)}` });
  bar.style.width = `${(46 * Math.abs(effect || 0)) / most}px`;
  return el("tr", { "data-target": target, class: [isStruck && "struck", target === state.focus && "focus"].filter(Boolean).join(" ") },
    el("th", { scope: "row" }, button, el("div", { class: "detail" }, detail)), el("td", {}, Number.isNaN(effect) ? "–" : [bar, changeMark(effect)]));
}

function focusTarget(target, move = true) {
  const before = document.querySelector("#targets tr.focus");
  before?.classList.remove("focus");
  before?.querySelector("button")?.setAttribute("tabindex", "-1");
  state.focus = target;
  const row = document.querySelector(`#targets tr[data-target="${target}"]`);
  row?.classList.add("focus");
  row?.querySelector("button").setAttribute("tabindex", "0");
  if (move) row?.querySelector("button").focus({ preventScroll: false });
}

function moveTarget(step) {
  if (!shownTargets.length) return;
  const place = shownTargets.indexOf(state.focus);
  focusTarget(shownTargets[Math.min(Math.max(place + step, 0), shownTargets.length - 1)]);
}

// ---- striking ------------------------------------------------------------------------------------------------------

function strike(target) {
  if (target < 0) return;
  state.done.push([...state.struck]);
  if (!state.struck.delete(target)) {
    state.struck.add(target);
  }
  refreshEdit();
}

function undo() {
  if (!state.done.length) return;
  state.struck = new Set(state.done.pop());
  refreshEdit();
}

function clearEdits() {
  if (state.struck.size) state.done.push([...state.struck]);
  state.struck = new Set();
  refreshEdit();
}

function refreshEdit() {
  drawEdit();
  drawWhatIf();
  drawTimeline();
  drawCurves();
  say(byId("edit").textContent);
}

/** What is struck, and the risk without it, in words. */
function drawEdit() {
  const box = byId("edit"), struck = struckRisk(), risk = riskAt(rowNow(), state.cause, state.horizon);
  byId("undo").disabled = !state.done.length;
  byId("clear").disabled = !state.struck.size;
  box.classList.remove("unlike");
  if (!state.struck.size) return box.replaceChildren(el("p", { class: "muted" }, "Choose a code or a visit to strike it through."));
  const names = [...state.struck].map(targetWords).join(", ");
  if (!struck) return box.replaceChildren(el("p", {}, el("s", {}, shortened(names, 200)), " ", unanswered()));
  const without = struck[state.cause][state.horizon], why = unlikeness(), isSum = state.struck.size > 1;
  box.classList.toggle("unlike", Boolean(why));
  box.replaceChildren(...[
    el("p", {}, el("s", {}, shortened(names, 200)), ` add${state.struck.size > 1 ? "" : "s"} ${isSum ? "about " : ""}`, changeMark(risk - without),
      ` points to the risk within ${horizonWords()}: ${percent(risk)} with, `, el("b", {}, percent(without)), " without."),
    isSum && el("p", { class: "why" }, "This adds what each does alone. Codes that act together differ."),
    why && el("p", { class: "why" }, `Read with caution: the edited record is unlike any seen, since ${why}.`),
  ].filter(Boolean));
}

function unanswered() {
  if (about.edits === "latest" && rowNow() !== data.row_offsets[state.patient + 1] - 1)
    return "This page holds what-if answers at each patient's latest prediction only.";
  return "This page does not hold the answer.";
}

/** The trajectory without what is struck, where it is known. */
function struckTrajectory(x, y, start) {
  if (!state.struck.size) return null;
  const pairs = [];
  for (let row = start; row < data.row_offsets[state.patient + 1]; row++) {
    const risk = struckAt(row);
    if (risk) pairs.push([dayOf(data.row_day[row]), risk[state.cause][state.horizon]]);
  }
  return [pairs.length > 1 && polyline(stepsOf(pairs), x, y, "edit"), pairs.map(([day, risk]) => mark("rect", { x: x(day) - 2.5, y: y(risk) - 2.5, width: 5, height: 5, class: "edit-mark" }))];
}

// ---- what moved it -------------------------------------------------------------------------------------------------

/** Rows [words, change] that add up to the change of risk since the prediction before; null where that is unknown. */
function moves() {
  const row = rowNow(), [start] = rowsOf(state.patient);
  if (row === start) return null;
  const risk = riskAt(row, state.cause, state.horizon), total = risk - riskAt(row - 1, state.cause, state.horizon), rows = [];
  for (const visit of recordOf(state.patient)) {
    if (!isKnownBy(visit, row) || isKnownBy(visit, row - 1)) continue;
    const without = removedRisk(state.patient, codeCount + visit.number, row);
    if (!without) return { total, rows: null };
    const names = visit.codes.map(([code]) => about.codes[code].words);
    rows.push([`Visit ${visit.number + 1}: ${shortened(names.join(", "), 400)}`, risk - without[state.cause][state.horizon]]);
  }
  const days = dayOf(data.row_day[row] - data.row_day[row - 1]), rest = total - rows.reduce((sum, one) => sum + one[1], 0);
  return { total, rows: [...rows, [`${duration(days)} passed without news${rows.length > 1 ? ", and what several visits do together" : ""}`, rest]] };
}

function drawMoved() {
  const found = moves(), box = byId("moved");
  if (!found) return box.replaceChildren(el("p", { class: "muted" }, "This is the first prediction: there is none before to compare with."));
  const sum = el("tr", { class: "sum" }, el("th", { scope: "row" }, "Change since the prediction before"), el("td", {}, changeMark(found.total)));
  const rows = (found.rows ?? []).map(([name, points]) => el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, changeMark(points))));
  const head = el("tr", {}, el("th", { scope: "col" }, "What"), el("th", { scope: "col" }, "Points"));
  box.replaceChildren(el("table", { class: "moves" }, el("thead", {}, head), el("tbody", {}, rows, sum)),
    found.rows ? "" : el("p", { class: "muted" }, "This page splits the change at each patient's latest prediction only."));
}
