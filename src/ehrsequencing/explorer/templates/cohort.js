// The cohort: a histogram of risk with a brush, a list of patients, and the calibration of those who are selected.

const BINS = 48, ROW_HEIGHT = 30;

/** What the cohort shows now: a row number of each patient, the chosen patients, and their order. */
const cohort = { rows: new Int32Array(0), risks: new Float64Array(0), listed: new Int32Array(0), sorted: new Float64Array(0) };
const memo = new Map(); // of what depends on the cause, the horizon and the moment only

function remembered(name, make) {
  const key = `${name} ${state.cause} ${state.horizon} ${state.moment}`;
  if (!memo.has(key)) memo.set(key, make());
  return memo.get(key);
}

const riskNow = (patient) => cohort.risks[patient];

/** Change of risk since the prediction time before; NaN at the first. */
function changeOf(patient) {
  const row = cohort.rows[patient];
  if (row < 0 || row === data.row_offsets[patient]) return NaN;
  return riskAt(row, state.cause, state.horizon) - riskAt(row - 1, state.cause, state.horizon);
}

/** 1 − the predicted probability of what happened by the horizon; NaN where that is not known. */
function surpriseOf(patient) {
  const row = cohort.rows[patient];
  const seen = row < 0 ? null : outcomeAfter(row);
  if (!seen || seen.days < about.start_days) return NaN;
  const horizon = about.horizons_days[state.horizon], risk = (cause) => riskAt(row, cause, state.horizon);
  if (seen.days <= horizon && seen.cause > 0) return 1 - risk(seen.cause - 1);
  return seen.days >= horizon ? about.causes.reduce((sum, _, cause) => sum + risk(cause), 0) : NaN;
}

/** Days from a prediction time until the event or the end of follow-up, and the cause (0: none); null if unknown. */
function outcomeAfter(row) {
  if (data.cause[row] === about.not_known) return null;
  return { days: dayOf(data.end_day[row] - data.row_day[row]), cause: data.cause[row] };
}

/** What the list is sorted by, largest first: from 0 to 1, NaN at the end, the lower number first among equals. */
const ORDERS = {
  risk: riskNow,
  change: (patient) => Math.abs(changeOf(patient)),
  surprise: surpriseOf,
  patient: () => 0,
};

/** Patients by falling keys. One number holds a key and a patient, for numbers are sorted far faster than by a function. */
function sorted(patients, keyOf) {
  const packed = Float64Array.from(patients, (patient) => {
    const key = keyOf(patient);
    return (Number.isNaN(key) ? 0 : 1 + Math.round(key * 2 ** 31)) * 2 ** 20 + (2 ** 20 - 1 - patient);
  }).sort().reverse();
  return Int32Array.from(packed, (number) => 2 ** 20 - 1 - (number % 2 ** 20));
}

function refreshCohort() {
  cohort.rows = remembered("rows", () => Int32Array.from({ length: data.count }, (_, patient) => rowAt(patient, state.moment)));
  cohort.risks = remembered("risks", () => Float64Array.from(cohort.rows, (row) => (row < 0 ? NaN : riskAt(row, state.cause, state.horizon))));
  cohort.sorted = remembered("sorted", () => cohort.risks.filter((risk) => !Number.isNaN(risk)).sort());
  refreshList();
  drawHistogram();
  drawCalibration();
}

/** Share of the cohort with a lower risk. */
function rankOf(risk) {
  let low = 0, high = cohort.sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (cohort.sorted[middle] < risk) low = middle + 1;
    else high = middle;
  }
  return low / Math.max(cohort.sorted.length, 1);
}

// ---- the list ------------------------------------------------------------------------------------------------------

function matchesSearch() {
  const text = state.search.trim().toLowerCase();
  if (!text) return () => true;
  const wanted = new Set();
  about.codes.forEach((code, k) => {
    if (code.name.toLowerCase().includes(text) || code.words.toLowerCase().includes(text)) wanted.add(k);
  });
  const hasOne = (patient) => {
    const first = data.item_offsets[data.visit_offsets[patient]], last = data.item_offsets[data.visit_offsets[patient + 1]];
    for (let k = first; k < last; k++) if (wanted.has(data.item_code[k])) return true;
    return false;
  };
  return (patient) => pseudonym(patient).toLowerCase().includes(text) || (wanted.size > 0 && hasOne(patient));
}

function refreshList() {
  const matches = matchesSearch(), { low, high } = state.brush, view = listView(), chosen = [];
  for (let patient = 0; patient < data.count; patient++) {
    const risk = riskNow(patient);
    if (risk >= low && risk <= high && matches(patient)) chosen.push(patient);
  }
  cohort.listed = sorted(chosen, ORDERS[state.order]);
  const none = state.search.trim() ? `No patient has “${shortened(state.search.trim(), 40)}” in the name or the record` : "No patient has such a risk";
  byId("count").textContent = chosen.length ? `${people(chosen.length)} of ${counted(data.count, "patient")}` : none;
  byId("rows").style.height = `${chosen.length * ROW_HEIGHT}px`;
  drawList(view);
}

/** Where the list is scrolled to. To ask after a change of the page would make the browser lay it out at once. */
function listView() {
  const box = byId("list");
  return { top: box.scrollTop, height: box.clientHeight };
}

/** Only the rows that are in sight exist. */
function drawList({ top, height } = listView()) {
  const box = byId("list"), first = Math.max(0, Math.floor(Math.min(top, cohort.listed.length * ROW_HEIGHT - height) / ROW_HEIGHT) - 4);
  const last = Math.min(cohort.listed.length, first + Math.ceil(height / ROW_HEIGHT) + 8);
  const rows = [];
  for (let place = first; place < last; place++) rows.push(listRow(cohort.listed[place], place));
  byId("rows").replaceChildren(...rows);
  const current = byId(`patient-${state.patient}`);
  if (current) box.setAttribute("aria-activedescendant", current.id);
  else box.removeAttribute("aria-activedescendant");
}

function listRow(patient, place) {
  const risk = riskNow(patient), moved = changeOf(patient), row = cohort.rows[patient];
  const age = ageWords(ageAt(patient, dayOf(data.row_day[row]))), surprise = surpriseOf(patient);
  const third = state.order === "surprise" ? (Number.isNaN(surprise) ? "–" : percent(surprise))
    : Number.isNaN(moved) ? "–" : changeMark(moved);
  const bar = el("span", { class: "bar" });
  bar.style.width = `${Math.max(2, 100 * Math.sqrt(risk))}%`;
  const item = el("div", {
    class: "row", role: "option", id: `patient-${patient}`, "aria-selected": String(patient === state.patient),
    "aria-setsize": cohort.listed.length, "aria-posinset": place + 1, onclick: () => selectPatient(patient),
  }, el("b", {}, pseudonym(patient)), el("span", {}, age), el("span", {}, shortened(sexOf(patient), 6)),
  el("span", { class: "risk" }, bar, el("span", {}, percent(risk))), el("span", {}, third));
  item.style.transform = `translateY(${place * ROW_HEIGHT}px)`;
  return item;
}

function moveInList(step) {
  const place = cohort.listed.indexOf(state.patient);
  const next = Math.min(Math.max(place + step, 0), cohort.listed.length - 1);
  if (next < 0) return;
  selectPatient(cohort.listed[next]);
  const box = byId("list"), top = next * ROW_HEIGHT;
  if (top < box.scrollTop) box.scrollTop = top;
  if (top + ROW_HEIGHT > box.scrollTop + box.clientHeight) box.scrollTop = top + ROW_HEIGHT - box.clientHeight;
  drawList();
}

// ---- the histogram -------------------------------------------------------------------------------------------------

/** Join neighbouring bars until each holds nobody or enough people. */
function mergedBins(counts) {
  const merged = [];
  let start = 0, held = 0, end = 0;
  counts.forEach((count, k) => {
    if (held === 0) start = k;
    held += count;
    if (count) end = k + 1;
    if (held === 0 || held >= about.smallest) {
      merged.push([start, k + 1, held]);
      held = 0;
    }
  });
  if (!held) return merged;
  while (merged.length && merged[merged.length - 1][2] === 0) merged.pop();
  if (!merged.length) return [];
  const [left, , before] = merged.pop();
  return [...merged, [left, end, before + held]];
}

const HISTOGRAM = { width: 360, height: 150, left: 8, right: 352, top: 12, base: 116 };

function histogramBins() {
  return remembered("bins", () => {
    const top = Math.max(0.05, Math.sqrt(cohort.sorted.at(-1) ?? 1)), counts = new Array(BINS).fill(0);
    for (const risk of cohort.sorted) counts[Math.min(BINS - 1, Math.floor((Math.sqrt(risk) / top) * BINS))]++;
    return mergedBins(counts).map(([a, b, count]) => [((a / BINS) * top) ** 2, ((b / BINS) * top) ** 2, count]);
  });
}

function drawHistogram() {
  const bins = histogramBins(), { width, height, left, right, top, base } = HISTOGRAM;
  const most = Math.sqrt(bins.at(-1)?.[1] ?? 1), x = (risk) => scale(0, most, left, right)(Math.sqrt(risk));
  const density = ([a, b, count]) => count / Math.max(x(b) - x(a), 0.5);
  const y = scale(0, Math.max(...bins.map(density), 1e-9), base, top), { low, high } = state.brush;
  const bars = bins.filter((bin) => bin[2]).map((bin) => {
    const isOut = bin[1] < low || bin[0] > high;
    const box = { x: x(bin[0]) + 0.5, y: y(density(bin)), width: Math.max(1, x(bin[1]) - x(bin[0]) - 1), height: base - y(density(bin)) };
    return mark("rect", { ...box, class: isOut ? "bar unknown" : "bar" }, mark("title", {}, `${percent(bin[0])} to ${percent(bin[1])}: ${people(bin[2])}`));
  });
  const marks = [0.001, 0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1].filter((tick) => Math.sqrt(tick) <= most);
  const roomy = marks.reduce((shown, tick) => (shown.length && x(tick) - x(shown.at(-1)) < 28 ? shown : [...shown, tick]), []);
  const axis = [line(left, base, right, base, "axis"), roomy.map((tick) => [line(x(tick), base, x(tick), base + 4, "axis"), words(x(tick), base + 16, percent(tick), "mid")])];
  const own = state.patient >= 0 ? riskNow(state.patient) : NaN;
  const here = Number.isNaN(own) ? [] : [line(x(own), top - 8, x(own), base, "now"), words(x(own), top - 2, "▾", "mid strong")];
  const picture = show("histogram", {
    width, height, columns: ["risk", "patients"],
    rows: () => bins.map(([a, b, count]) => [`${percent(a)} to ${percent(b)}`, people(count)]),
    sentence: `Histogram of the risk of ${about.causes[state.cause]} within ${horizonWords()}, ${momentWords()}: ${bins.length ? `from ${percent(bins[0][0])} to ${percent(bins.at(-1)[1])}` : "too few patients to show"}`,
    marks: [bars, axis, words((left + right) / 2, height - 3, `risk of ${shortened(about.causes[state.cause], 24)} within ${horizonWords()}`, "mid"), here],
  });
  brushing(picture, (pixels) => (Math.min(Math.max((pixels - left) / (right - left), 0), 1) * most) ** 2);
}

/** Drag over the histogram to keep the patients with these risks; a click keeps all. */
function brushing(picture, riskOf) {
  const at = (event) => {
    const box = picture.getBoundingClientRect();
    return riskOf(((event.clientX - box.left) / box.width) * HISTOGRAM.width);
  };
  picture.classList.add("brush");
  picture.addEventListener("pointerdown", (down) => {
    const start = at(down), move = (event) => setBrush(Math.min(start, at(event)), Math.max(start, at(event)), true);
    const finish = (event) => {
      removeEventListener("pointermove", move);
      if (Math.abs(event.clientX - down.clientX) < 4) setBrush(0, 1);
      else setBrush(Math.min(start, at(event)), Math.max(start, at(event)));
    };
    addEventListener("pointermove", move);
    addEventListener("pointerup", finish, { once: true });
    down.preventDefault();
  });
}

function setBrush(low, high, moving = false) {
  state.brush = { low, high };
  byId("low").value = Number((100 * low).toPrecision(3));
  byId("high").value = Number((100 * high).toPrecision(3));
  if (moving) return void document.querySelectorAll("#histogram rect").forEach((bar, k) => {
    const bin = histogramBins().filter((one) => one[2])[k];
    bar.setAttribute("class", bin[1] < low || bin[0] > high ? "bar unknown" : "bar");
  });
  byId("list").scrollTop = 0;
  refreshList();
  drawHistogram();
  drawCalibration();
}

// ---- calibration ---------------------------------------------------------------------------------------------------

/** Aalen–Johansen: the cumulative incidence of a cause by a time, of [days, cause] pairs. */
function observedRisk(outcomes, cause, horizon) {
  const sorted = outcomes.slice().sort((a, b) => a[0] - b[0]);
  let free = 1, incidence = 0, k = 0, reached = false;
  while (k < sorted.length && sorted[k][0] <= horizon) {
    const time = sorted[k][0], atRisk = sorted.length - k;
    let own = 0, any = 0;
    for (; k < sorted.length && sorted[k][0] === time; k++) {
      any += sorted[k][1] > 0;
      own += sorted[k][1] === cause + 1;
    }
    incidence += (free * own) / atRisk;
    free *= 1 - any / atRisk;
  }
  reached = k < sorted.length || free === 0;
  return reached ? incidence : NaN; // nobody is followed until the horizon
}

/** Rows at which predictions may be compared with what happened: their moment was not chosen by what happened. */
const comparedMoment = () => (state.moment === 0 ? 1 : state.moment);

function comparable(patients) {
  const rows = [], moment = comparedMoment();
  for (const patient of patients) {
    const row = rowAt(patient, moment);
    if (row < 0 || data.cause[row] === about.not_known) continue;
    const days = dayOf(data.end_day[row] - data.row_day[row]);
    if (days > about.start_days) rows.push([riskAt(row, state.cause, state.horizon), days, data.cause[row]]);
  }
  return rows;
}

const meanOf = (values) => values.reduce((sum, value) => sum + value, 0) / Math.max(values.length, 1);

/** Predicted and observed risk of some rows; null where fewer than 11 have the event, or fewer than 11 have not. */
function compared(rows) {
  const observed = observedRisk(rows.map(([, days, cause]) => [days, cause]), state.cause, about.horizons_days[state.horizon]);
  const events = rows.length * observed;
  if (!(Math.min(Math.round(events), Math.round(rows.length - events)) >= about.smallest)) return null;
  return { predicted: meanOf(rows.map((row) => row[0])), observed, n: rows.length };
}

/** Five groups by risk; neighbours are joined until each may be shown. */
function calibrationGroups() {
  const rows = comparable(cohort.listed).sort((a, b) => a[0] - b[0]), groups = [];
  let pool = [];
  for (let k = 0; k < 5; k++) {
    pool = pool.concat(rows.slice(Math.round((k * rows.length) / 5), Math.round(((k + 1) * rows.length) / 5)));
    if (compared(pool)) {
      groups.push(pool);
      pool = [];
    }
  }
  if (pool.length && groups.length) groups.push(groups.pop().concat(pool));
  return groups.map(compared).filter(Boolean);
}

function drawCalibration() {
  const groups = calibrationGroups(), size = { width: 360, height: 176 }, [left, right, top, base] = [58, 338, 8, 136];
  const note = state.moment === 0 ? ` They are compared at the first prediction: who is seen last depends on what happened.` : "";
  byId("calibration-note").textContent = (groups.length ? "Each point is a group of patients; on the line, as many had the event as predicted."
    : `Hidden: fewer than ${about.smallest} of these patients had the event, or fewer than ${about.smallest} had not.`) + note;
  const most = Math.max(0.02, ...groups.flatMap((group) => [group.predicted, group.observed])) * 1.1;
  const x = scale(0, most, left, right), y = scale(0, most, base, top);
  const dots = groups.map((group) => mark("circle", { cx: x(group.predicted), cy: y(group.observed), r: 5, class: "m0" },
    mark("title", {}, `${counted(group.n, "patient")}: predicted ${percent(group.predicted)}, observed ${percent(group.observed)}`)));
  show("calibration", {
    ...size, columns: ["predicted", "observed", "patients"],
    rows: () => groups.map((group) => [percent(group.predicted), percent(group.observed), people(group.n)]),
    sentence: `Calibration of the selected patients, ${state.moment === 0 ? "at the first prediction" : momentWords()}: ${groups.length
      ? groups.map((group) => `predicted ${percent(group.predicted)}, observed ${percent(group.observed)}`).join("; ") : "hidden, too few events"}`,
    marks: groups.length ? [
      riskAxis(y, most, left, right), line(left, base, right, base, "axis"), line(x(0), y(0), x(most), y(most), "reference"),
      ticks(0, most, 4).map((tick) => words(x(tick), base + 15, percent(tick), "mid")),
      words((left + right) / 2, base + 32, "predicted risk", "mid"),
      mark("text", { class: "mid", transform: `translate(11 ${(top + base) / 2}) rotate(-90)` }, "observed"), dots,
    ] : words(size.width / 2, size.height / 2, "too few events to show", "mid muted"),
  });
}
