// One patient: the risk in words, the timeline with the trajectory above it, the curves, and people like this one.

const MOST_LANES = 6, MOST_LABS = 4, LANE = 18, LAB = 30, LINE = 14;

/** The patient's selected prediction time, as a number of all rows. */
const rowNow = () => data.row_offsets[state.patient] + state.time;
const dayNow = () => dayOf(data.row_day[rowNow()]);
const visitWords = (row) => {
  const [first, last] = visitsOf(state.patient), done = data.row_visits[row];
  return data.is_query[row] ? `${counted(done, "visit")} so far` : `visit ${done} of ${last - first}`;
};

/** The patient's record, visit by visit: {day, codes: [[code, value]]}. */
function recordOf(patient) {
  const visits = [];
  eachItem(patient, (number, day) => visits.push({ number, day, codes: [] }), (code, value) => visits.at(-1).codes.push([code, value]));
  return visits;
}

const isKnownBy = (visit, row) => visit.day <= dayOf(data.row_day[row]) + 0.005;

function drawPatient() {
  const row = rowNow(), risk = riskAt(row, state.cause, state.horizon), [start] = rowsOf(state.patient);
  const age = ageWords(ageAt(state.patient, dayNow())), sex = sexOf(state.patient);
  byId("name").textContent = [`Patient ${pseudonym(state.patient)}`, age && `${age} years`, sex].filter(Boolean).join(" · ");
  byId("sentence").textContent = sentenceOf(row, risk, start);
  drawIcons(risk);
  drawTimeline();
  drawCurves();
  drawMoved();
  drawNeighbours();
  const slider = byId("time");
  slider.max = data.row_offsets[state.patient + 1] - start - 1;
  slider.value = state.time;
  slider.disabled = slider.max === "0";
  slider.setAttribute("aria-valuetext", `day ${grouped(Math.round(dayNow()))}, ${visitWords(row)}, risk ${percent(risk)}`);
  byId("time-words").textContent = `Day ${grouped(Math.round(dayNow()))}, ${visitWords(row)}. Only what is left of this line was used.`;
}

function sentenceOf(row, risk, start) {
  const per = risk >= 0.01 ? 100 : 1000, rank = rankOf(risk), cause = about.causes[state.cause];
  let text = `On day ${grouped(Math.round(dayNow()))} (${visitWords(row)}), the predicted risk of ${cause} within ${horizonWords()} is ${percent(risk)}: `;
  text += `about ${Math.max(Math.round(risk * per), risk > 0 ? 1 : 0)} in ${grouped(per)} patients with such a record.`;
  text += rank >= 0.5 ? ` It is higher than that of ${percent(rank)} of the cohort ${momentWords()}.` : ` It is lower than that of ${percent(1 - rank)} of the cohort ${momentWords()}.`;
  if (row === start) return `${text} It is this patient's first prediction.`;
  const moved = risk - riskAt(row - 1, state.cause, state.horizon), days = dayOf(data.row_day[row] - data.row_day[row - 1]);
  const verb = { up: "rose", down: "fell" }[direction(moved)];
  return `${text} ${verb ? `It ${verb} by ${change(Math.abs(moved)).slice(1)} points` : "It did not change"} since the prediction ${duration(days)} before.`;
}

/** A hundred squares, as many filled as patients of a hundred would have the event. */
function drawIcons(risk) {
  const filledCount = Math.round(100 * risk), squares = [];
  for (let k = 0; k < 100; k++) squares.push(mark("rect", { x: (k % 10) * 9, y: Math.floor(k / 10) * 9, width: 7, height: 7, rx: 1.5, class: k < filledCount ? "on" : "off" }));
  const label = `${filledCount} of 100 squares are filled`;
  byId("icons").replaceChildren(mark("svg", { viewBox: "0 0 88 88", class: "icons", role: "img", "aria-label": label }, squares), el("p", {}, el("b", {}, percent(risk)), el("span", {}, `within ${horizonWords()}`)));
}

// ---- the timeline --------------------------------------------------------------------------------------------------

/** Lanes by kind of code, the largest first: [kind, [[day, words, whether a code is new]]]. */
function lanesOf(visits) {
  const lanes = new Map(), before = new Set();
  for (const visit of visits) {
    for (const [code] of visit.codes) {
      const { lane, words: name } = about.codes[code];
      if (!lanes.has(lane)) lanes.set(lane, new Map());
      const marks = lanes.get(lane), found = marks.get(visit.day) ?? [visit.day, [], false];
      found[1].push(name);
      found[2] ||= !before.has(code);
      marks.set(visit.day, found);
    }
    visit.codes.forEach(([code]) => before.add(code));
  }
  const sorted = [...lanes].sort((a, b) => b[1].size - a[1].size).map(([lane, marks]) => [lane, [...marks.values()]]);
  if (sorted.length <= MOST_LANES) return sorted;
  const main = sorted.filter(([lane]) => lane !== "other").slice(0, MOST_LANES - 1);
  const rest = sorted.filter((lane) => !main.includes(lane)).flatMap(([, marks]) => marks);
  return [...main, ["other", rest.sort((a, b) => a[0] - b[0])]];
}

/** The codes with most numbers: [code, [[day, value]]]. */
function labsOf(visits) {
  const labs = new Map();
  for (const visit of visits)
    for (const [code, value] of visit.codes)
      if (!Number.isNaN(value)) (labs.get(code) ?? labs.set(code, []).get(code)).push([visit.day, value]);
  return [...labs].filter(([, values]) => values.length > 1).sort((a, b) => b[1].length - a[1].length).slice(0, MOST_LABS);
}

function drawTimeline() {
  const [start, end] = rowsOf(state.patient), row = rowNow(), now = dayNow(), visits = recordOf(state.patient);
  const times = Array.from({ length: end - start }, (_, k) => [dayOf(data.row_day[start + k]), riskAt(start + k, state.cause, state.horizon)]);
  const outcome = data.cause[row] === about.not_known ? null : { day: dayOf(data.end_day[row]), cause: data.cause[row] };
  const days = [...times.map((time) => time[0]), ...visits.map((visit) => visit.day), outcome?.day ?? 0];
  const first = Math.min(...days.slice(0, 1), 0), last = Math.max(reduceMost(days), 1), lanes = lanesOf(visits), labs = labsOf(visits);
  const isNarrow = innerWidth <= 700, width = isNarrow ? 390 : 900, names = isNarrow ? 15 : 22; // letters of a lane's name
  const [left, right, head, plot] = [isNarrow ? 124 : 168, width - 50, 52, 124], base = head + plot;
  const named = labs.map(([code]) => linesOf(about.codes[code].words, isNarrow ? 56 : 130)), tops = [base + 12 + lanes.length * LANE];
  for (const lines of named) tops.push(tops.at(-1) + LAB + LINE * lines.length);
  const height = tops.at(-1) + 44, floor = height - 40;
  const x = scale(first, last, left, right), top = Math.min(1, 1.15 * reduceMost(times.map((time) => time[1]))) || 0.01, y = scale(0, top, base, head);
  const past = times.slice(0, state.time + 1), future = times.slice(state.time);
  // a number stands right of its point, and right of a line that would go through it
  const lines = [x(now), ...(outcome ? [x(outcome.day)] : [])].sort((a, b) => a - b);
  const beside = (at, text) => lines.reduce((from, place) => (from < place + 4 && from + 9 * text.length > place ? place + 4 : from), at + 6);
  const frame = { x, now, left, right, names, beside };
  const picture = show("timeline", {
    width, height, columns: ["day", "what", "value"], rows: () => timelineRows(times, visits, outcome),
    sentence: timelineSentence(times, visits, outcome), marks: [
      mark("rect", { x: x(now), y: head - 32, width: Math.max(0, right - x(now)), height: floor - head + 32, class: "future" }),
      right - x(now) > 130 && words(x(now) + 6, head - 20, "the future: not used", "muted"),
      riskAxis(y, top, left, right), words(left, 12, `risk of ${shortened(about.causes[state.cause], 30)} within ${horizonWords()}`, "strong"),
      polyline(stepsOf(future), x, y, "later"), polyline(stepsOf(past), x, y, ""),
      times.map(([day, risk], k) => mark("circle", { cx: x(day), cy: y(risk), r: k === state.time ? 5 : 2.6, class: k === state.time ? "m0 chosen" : k > state.time ? "m0 later" : "m0" })),
      struckTrajectory(x, y, start), lanes.map((lane, k) => drawnLane(lane, base + 12 + (k + 0.5) * LANE, frame)),
      labs.map((lab, k) => drawnLab(lab, named[k], tops[k], frame)),
      happened(outcome, x, head, floor, left, right), line(x(now), head - 4, x(now), floor, "now"), dayAxis(x, first, last, floor, "since the first visit"),
    ],
  });
  picture.addEventListener("click", (event) => {
    const box = picture.getBoundingClientRect(), at = ((event.clientX - box.left) / box.width) * width;
    selectTime(nearest(times.map((time) => Math.abs(x(time[0]) - at))));
  });
}

const reduceMost = (values) => values.reduce((most, value) => Math.max(most, value), 0);
const nearest = (distances) => distances.reduce((best, distance, k) => (distance < distances[best] ? k : best), 0);

/** One path for all marks of a kind: records may have thousands of visits. */
function ticksOf(days, x, y, style) {
  const seen = [...new Set(days.map((day) => x(day).toFixed(1)))];
  return mark("path", { d: seen.map((at) => `M${at} ${y - 5}v10`).join(""), class: `tick ${style}` });
}

function drawnLane([kind, marks], y, { x, now, left, right, names }) {
  const at = (wanted) => marks.filter(([day, , isNew]) => wanted(day, isNew)).map(([day]) => day);
  const known = (day) => day <= now + 0.005;
  const newest = marks.filter(([day]) => known(day)).at(-1);
  return mark("g", {}, line(left, y, right, y, "grid"), words(left - 8, y + 4, shortened(kind, names), "end"),
    ticksOf(at((day, isNew) => known(day) && !isNew), x, y, "again"), ticksOf(at((day, isNew) => known(day) && isNew), x, y, "seen"),
    ticksOf(at((day) => !known(day)), x, y, "later"),
    newest && mark("title", {}, `${kind}, newest on day ${Math.round(newest[0])}: ${shortened(newest[1].join(", "), 200)}`));
}

/** A code's numbers as a line, and the newest of them, with its unit, in words. */
function drawnLab([code, values], lines, start, { x, now, left, right, beside }) {
  const top = start + LINE * lines.length;
  const numbers = values.map((pair) => pair[1]), low = Math.min(...numbers.slice(0, 5000)), high = Math.max(...numbers.slice(0, 5000));
  const y = scale(low, high, top + LAB - 6, top + 5), past = values.filter(([day]) => day <= now + 0.005), newest = past.at(-1);
  const { words: name, unit } = about.codes[code], text = newest ? valueText(newest[1], unit) : "";
  return mark("g", {}, line(left, top + LAB - 2, right, top + LAB - 2, "grid"), lines.map((line, k) => words(8, start + 11 + LINE * k, line)),
    polyline(values.filter(([day]) => day >= (newest?.[0] ?? -1)), x, y, "lab later"), polyline(past, x, y, "lab"),
    past.slice(-60).map(([day, value]) => mark("circle", { cx: x(day), cy: y(value), r: 1.8, class: "lab-dot" })),
    newest && words(beside(x(newest[0]), text), y(newest[1]) + 4, text, "value"),
    mark("title", {}, `${name}: ${past.length} values, from ${valueText(low, unit)} to ${valueText(high, unit)}`));
}

const outcomeWords = (outcome) => (outcome.cause ? about.causes[outcome.cause - 1] : "end of follow-up");

function happened(outcome, x, head, floor, left, right) {
  if (!outcome) return words(right, 12, "what happened later is not known", "end muted");
  const at = x(outcome.day), isLeft = at > (left + right) / 2;
  return [
    line(at, head - 4, at, floor, outcome.cause ? "happened" : "ended"),
    outcome.cause ? mark("path", { d: `M${at - 5} ${head - 9}l5 5l5 -5z`, class: "happened" }) : mark("circle", { cx: at, cy: head - 7, r: 3.5, class: "ended" }),
    words(at + (isLeft ? -9 : 9), head - 4, outcomeWords(outcome), isLeft ? "end strong" : "strong"),
  ];
}

function timelineSentence(times, visits, outcome) {
  const told = `Timeline of ${pseudonym(state.patient)}: ${counted(visits.length, "visit")}, ${counted(times.length, "prediction")}. `;
  const risks = `Risk within ${horizonWords()}: ${percent(times[0][1])} at first, ${percent(times[state.time][1])} at the selected time`;
  return `${told}${risks}${outcome ? `. ${outcomeWords(outcome)} on day ${Math.round(outcome.day)}` : ""}.`;
}

function timelineRows(times, visits, outcome) {
  const rows = times.map(([day, risk]) => [day, `risk within ${horizonWords()}`, percent(risk)]);
  for (const visit of visits.slice(0, 500))
    for (const [code, value] of visit.codes) rows.push([visit.day, about.codes[code].words, Number.isNaN(value) ? "" : valueText(value, about.codes[code].unit)]);
  if (outcome) rows.push([outcome.day, outcomeWords(outcome), ""]);
  return rows.sort((a, b) => a[0] - b[0]).slice(0, 1500).map(([day, ...rest]) => [day.toFixed(1), ...rest]);
}

// ---- the curves ----------------------------------------------------------------------------------------------------

/** Quartiles of the cohort's curves: [[day, low, middle, high]]. */
function cohortCurve() {
  return remembered("curve", () => {
    const rows = cohort.rows.filter((row) => row >= 0), every = Math.max(1, Math.floor(rows.length / 2000)), some = rows.filter((_, k) => k % every === 0);
    if (rows.length < about.smallest) return [];
    return about.curve_days.map((day, point) => {
      const raw = Uint16Array.from(some, (row) => rawRisk(row, state.cause, point)).sort();
      return [day, ...[0.25, 0.5, 0.75].map((share) => stored(raw[Math.floor(share * (raw.length - 1))]))];
    });
  });
}

function drawCurves() {
  const row = rowNow(), [start] = rowsOf(state.patient), last = about.curve_days.at(-1), struck = struckRisk();
  const own = about.causes.map((_, cause) => curveAt(row, cause)), ghost = row > start ? curveAt(row - 1, state.cause) : null;
  const edited = struck ? editedCurve(row, state.cause, struck) : null, others = cohortCurve();
  const [left, right, top, base] = [48, 372, 14, 214], horizon = about.horizons_days[state.horizon];
  const all = [...own.flat(), ...(ghost ?? []), ...(edited ?? []), ...others.map((point) => [0, point[3]])];
  const most = Math.min(1, 1.12 * reduceMost(all.map((pair) => pair[1]))) || 0.01, x = scale(0, last, left, right), y = scale(0, most, base, top);
  const band = others.length ? [[about.start_days, 0], ...others.map((p) => [p[0], p[1]]), ...others.map((p) => [p[0], p[3]]).reverse()] : [];
  const ends = own.map((curve, cause) => [y(curve.at(-1)[1]), about.causes[cause], cause === state.cause ? "strong" : ""]);
  if (edited) ends.push([y(edited.at(-1)[1]), "after striking", "edit"]);
  show("curves", {
    width: 470, height: 262, columns: ["within", ...about.causes, `${about.causes[state.cause]}, visit before`, ...(edited ? ["after striking"] : [])],
    rows: () => about.horizons_days.map((day, h) => [duration(day), ...about.causes.map((_, cause) => percent(riskAt(row, cause, h))),
      row > start ? percent(riskAt(row - 1, state.cause, h)) : "–", ...(struck ? [percent(struck[state.cause][h])] : [])]),
    sentence: `Risk curves from day ${Math.round(dayNow())}: ${own.map((curve, cause) => `${about.causes[cause]} ${percent(curve.at(-1)[1])}`).join(", ")} within ${duration(last)}`,
    marks: [
      riskAxis(y, most, left, right), band.length && mark("path", { d: `${pathOf(band, x, y)}Z`, class: "band grey" }),
      others.length && polyline([[about.start_days, 0], ...others.map((p) => [p[0], p[2]])], x, y, "grey"), line(x(horizon), top, x(horizon), base, "reference"),
      own.map((curve, cause) => cause !== state.cause && polyline(curve, x, y, `k${Math.min(cause > state.cause ? cause : cause + 1, 3)} thin`)),
      ghost && polyline(ghost, x, y, "ghost"), polyline(own[state.cause], x, y, ""),
      edited && [polyline(edited, x, y, "edit"), struck[state.cause].map((risk, h) => mark("rect", { x: x(about.horizons_days[h]) - 3.5, y: y(risk) - 3.5, width: 7, height: 7, class: "edit-mark" }))],
      dayAxis(x, 0, last, base, "after the prediction"), endNames(ends, right + 6, top, base),
    ],
  });
  byId("curves-note").textContent = `${ghost ? "Dashed: at the prediction before. " : ""}Grey: the middle half of the cohort ${momentWords()}.${edited ? " Squares: the risk without what is struck, exact at the horizons; between them the line keeps the shape of the curve." : ""}`;
}

/** A curve through edited risks at the horizons; in between it has the shape of the unedited one. */
function editedCurve(row, cause, struck) {
  const before = curveAt(row, cause), found = [];
  let low = [about.start_days, 0, 0];
  about.horizons_days.forEach((day, h) => {
    const high = [day, riskAt(row, cause, h), struck[cause][h]], span = high[1] - low[1];
    for (const [at, risk] of before)
      if (at >= low[0] && at < day) found.push([at, low[2] + (high[2] - low[2]) * (span > 0 ? (risk - low[1]) / span : (at - low[0]) / (day - low[0]))]);
    low = high;
  });
  return [...found, [low[0], low[2]]];
}

// ---- people like this ----------------------------------------------------------------------------------------------

const NEIGHBOURS = 200;

const logit = (p) => Math.log(Math.max(p, 1e-5) / Math.max(1 - p, 1e-5));

/** Log odds of the risk, and age, of all patients at a moment that was not chosen by what happened to them. */
function placesOfAll() {
  return remembered("places", () => {
    const odds = new Float64Array(data.count).fill(NaN), ages = new Float64Array(data.count);
    for (let patient = 0; patient < data.count; patient++) {
      const row = rowAt(patient, comparedMoment());
      if (row < 0 || data.cause[row] === about.not_known) continue;
      odds[patient] = logit(riskAt(row, state.cause, state.horizon));
      ages[patient] = ageAt(patient, dayOf(data.row_day[row]));
    }
    return { odds, ages };
  });
}

/** The patients nearest in risk and age. */
function neighboursOf(risk, age) {
  const { odds, ages } = placesOfAll(), own = logit(risk), near = [];
  for (let patient = 0; patient < data.count; patient++) {
    const apart = (odds[patient] - own) / 0.25, years = (ages[patient] - age) / 5 || 0, distance = apart * apart + years * years;
    if (distance < 9 && patient !== state.patient) near.push([patient, distance]);
  }
  return near.sort((a, b) => a[1] - b[1]).slice(0, NEIGHBOURS).map((one) => one[0]);
}

function drawNeighbours() {
  const risk = riskAt(rowNow(), state.cause, state.horizon), near = neighboursOf(risk, ageAt(state.patient, dayNow()));
  const found = compared(comparable(near)), when = state.moment === 0 ? "at their first prediction" : momentWords();
  if (!found) {
    byId("neighbours").replaceChildren(el("p", {}, `Too few patients with such a risk and age ${when} to compare with: fewer than ${about.smallest} had the event, or fewer than ${about.smallest} had not.`));
    return;
  }
  const bar = (name, value, style) => {
    const inner = el("span", { class: `fill ${style}` });
    inner.style.width = `${100 * Math.min(1, value / Math.max(found.predicted, found.observed))}%`;
    return el("div", { class: "pair" }, el("span", {}, name), el("span", { class: "track" }, inner), el("b", {}, percent(value)));
  };
  byId("neighbours").replaceChildren(
    el("p", {}, `Of ${counted(found.n, "patient")} nearest in risk and age ${when}, ${percent(found.observed)} had ${about.causes[state.cause]} within ${horizonWords()}; ${percent(found.predicted)} were predicted to.`),
    bar("predicted", found.predicted, ""), bar("observed", found.observed, "other"));
}
