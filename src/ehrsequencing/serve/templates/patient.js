
// One patient: what is typed becomes rows of MEDS, the server answers, and the answers are drawn. Nothing is kept.

const about = JSON.parse(byId("about").textContent);
const form = byId("form"), DAY = 86_400_000, PATIENCE = 150; // milliseconds; PATIENCE after the last key
const isoDay = (date) => new Date(date - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 10);

const isTyped = (input) => (input.type === "checkbox" ? input.checked : input.value !== "");

/** The form as rows of MEDS; none where nothing is typed of the patient. */
function typedRows() {
  const day = byId("day").value, found = [];
  const add = (code, time, numeric_value = null) => found.push({ code, time, numeric_value });
  if (byId("sex")?.value) add(byId("sex").value, null);
  if (byId("age").value) add(about.birth, new Date(Date.parse(day) - byId("age").value * 365.25 * DAY).toISOString().slice(0, 10));
  if (about.index.length) add(byId("index")?.value ?? about.index[0], byId("index-day").value || day);
  for (const item of form.querySelectorAll("[data-code]")) {
    const [value, own] = item.querySelectorAll("input"), isOn = isTyped(value);
    item.classList.toggle("on", isOn);
    if (isOn) add(item.dataset.code, own.value || day, value.type === "checkbox" ? null : Number(value.value));
  }
  const days = found.filter((row) => row.time && row.code !== about.birth).map((row) => row.time).sort();
  for (const code of about.periods) if (days.length) add(code, days[0]);
  const isEmpty = ![...form.querySelectorAll("#sex, #age, [data-code] input:not([type=date])")].some(isTyped);
  return isEmpty ? [] : found.sort((a, b) => (a.time ?? "").localeCompare(b.time ?? ""));
}

async function ask(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  const reply = await fetch(path, { method: "POST", headers, body: JSON.stringify(body), signal });
  const answer = await reply.json();
  if (reply.ok) return answer;
  throw new Error([answer.where, answer.detail, answer.fix].filter(Boolean).join(": "));
}

/** What is wrong with the form, or empty. */
function problem(rows) {
  for (const own of form.querySelectorAll("input[type=date]")) own.max = own.id === "day" ? "" : byId("day").value;
  const wrong = form.querySelector("input:invalid");
  if (wrong) return `${wrong.labels[0]?.firstChild.textContent.trim() ?? wrong.ariaLabel}: this is not possible. Nothing is asked until it is corrected.`;
  return rows.some((row) => row.time) ? "" : "Type an age, a number or a code: nothing is predicted of an empty form.";
}

let waits = 0, asking = new AbortController();

async function refresh() {
  asking.abort();
  asking = new AbortController();
  const { signal } = asking, rows = typedRows(), wrong = problem(rows);
  if (wrong) return failed(wrong);
  const horizon = about.horizons_days[Number(byId("horizon").value)] ?? null, cause = about.causes[Number(byId("cause").value)];
  const record = { rows, at: byId("day").value };
  try {
    const [risks, why] = await Promise.all([
      ask("/predict", { ...record, horizons_days: about.curve_days.length ? about.curve_days : null }, signal),
      ask("/explain", { ...record, cause, horizon_days: horizon }, signal),
    ]);
    draw(risks, why, cause, horizon);
    drawFixes({ ...risks.record.fixes, ...why.record.fixes });
  } catch (error) {
    if (!signal.aborted) failed(error.message);
  }
}

/** What the server changed or left out of that which is typed, so that nothing looks used that is not. */
function drawFixes(fixes) {
  const items = Object.entries(fixes).map(([name, count]) => el("li", {}, `${count}: ${about.fixes[name] ?? name}`));
  byId("fixed").hidden = !items.length;
  byId("fixed").replaceChildren(el("strong", {}, "Not used as typed:"), el("ul", { class: "caveats" }, items));
}

function failed(text) {
  byId("sentence").textContent = text;
  for (const id of ["curves", "moved"]) byId(id).replaceChildren();
  byId("unlike").hidden = byId("fixed").hidden = true;
  document.body.dataset.state = "ready";
}

function draw(risks, why, cause, horizon) {
  const [found] = risks.predictions, within = horizon ? `within ${duration(horizon)}` : "before the next visit";
  if (!found) return failed(`No risk is predicted: ${risks.why_none}.`);
  const place = horizon ? risks.horizons_days.indexOf(horizon) : 0, values = found.risk[cause];
  const range = found.low ? ` The models of the ensemble say ${percent(found.low[cause][place])} to ${percent(found.high[cause][place])}.` : "";
  byId("sentence").textContent = `Risk of ${cause} ${within}: ${percent(values[place])}, counted from ${found.time.slice(0, 10).replaceAll("-", "\u2011")}.${range}`;
  byId("sentence").dataset.risk = values[place];
  drawUnlike([...risks.warnings.map((text) => ({ code: null, why: text })), ...why.unlike]);
  if (horizon) drawCurves(risks.horizons_days, found.risk, cause, horizon);
  drawMoved(why.moved.filter((one) => Math.abs(one.change) >= 5e-5).slice(0, 12), cause, within);
  document.body.dataset.state = "ready";
}

function drawUnlike(unlike) {
  const lines = new Map();
  for (const { code, why } of unlike) lines.set(why, [...(lines.get(why) ?? []), ...(code ? [about.words[code] ?? code] : [])]);
  const items = [...lines].map(([why, codes]) => {
    const more = codes.length > 5 ? ` and ${codes.length - 5} more` : "";
    return el("li", {}, codes.length ? `${codes.slice(0, 5).join(", ")}${more}: ${why}` : why);
  });
  byId("unlike").hidden = !items.length;
  byId("unlike").replaceChildren(el("strong", {}, "This record is unlike those seen in training."), el("ul", { class: "caveats" }, items));
}

function drawCurves(days, risk, cause, horizon) {
  const width = 560, height = 250, left = 52, right = 455, low = 16, base = 206, last = days.at(-1);
  const top = 1.1 * Math.max(...about.causes.flatMap((name) => risk[name]), 0.01);
  const x = scale(0, last, left, right), y = scale(0, top, base, low), at = days.indexOf(horizon), names = about.causes;
  const pairs = (name) => [[0, 0], ...days.map((day, k) => [day, risk[name][k]])];
  show("curves", {
    width, height,
    sentence: `Risk curves over ${duration(last)}: ${names.map((name) => `${name} ${percent(risk[name].at(-1))}`).join(", ")}`,
    marks: [
      riskAxis(y, top, left, right), dayAxis(x, 0, last, base, "from the day of the prediction"), line(x(horizon), low, x(horizon), base, "reference"),
      names.map((name, k) => polyline(pairs(name), x, y, k ? `k${Math.min(k, 3)}` : "")),
      mark("circle", { cx: x(horizon), cy: y(risk[cause][at]), r: 4, class: `m${names.indexOf(cause)}` }),
      endNames(names.map((name) => [y(risk[name].at(-1)), name, ""]), right + 8, low, base),
    ],
    columns: ["within", ...names],
    rows: () => days.map((day, k) => [duration(day), ...names.map((name) => percent(risk[name][k]))]),
  });
}

function drawMoved(moved, cause, within) {
  if (!moved.length) return byId("moved").replaceChildren(el("p", {}, "Nothing that is typed moves this risk."));
  const rows = moved.map((one) => [about.words[one.code] ?? one.code, changeMark(one.change)]);
  byId("moved").replaceChildren(table(["Entry", `Adds to the risk of ${cause} ${within}, points`], rows, ""));
}

/** Which codes are shown: those that hold the words of the search, or the most frequent ones, and all that are typed. */
function find() {
  const words = byId("find").value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const item of form.querySelectorAll("[data-code]")) {
    const text = `${item.dataset.code} ${item.querySelector("label").textContent}`.toLowerCase();
    const isFound = words.length ? words.every((word) => text.includes(word)) : item.dataset.often !== undefined;
    item.hidden = !isFound && !isTyped(item.querySelector("input"));
  }
}

/** One more value of a code, with its own day. */
function another(item) {
  const more = item.cloneNode(true), words = item.querySelector("label").firstChild.textContent.trim();
  for (const input of more.querySelectorAll("input")) {
    input.removeAttribute("id");
    input.value = "";
    input.checked = false;
    input.ariaLabel = input.type === "date" ? `Day of another ${words}` : `Another ${words}`;
  }
  more.querySelector("label").removeAttribute("for");
  more.classList.remove("on");
  more.classList.add("again");
  item.after(more);
  more.querySelector("input").focus();
}

function begin() {
  byId("day").value = isoDay(new Date());
  byId("horizon").append(...about.horizons_days.map((days, k) => el("option", { value: k, selected: k === about.main }, duration(days))));
  const later = () => {
    document.body.dataset.state = "waiting";
    asking.abort(); // an answer to what is no longer typed is not drawn
    clearTimeout(waits);
    waits = setTimeout(refresh, PATIENCE);
  };
  form.addEventListener("input", (event) => (event.target.id === "find" ? find() : later()));
  form.addEventListener("click", (event) => event.target.matches(".more") && another(event.target.closest(".item")));
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(() => {
    for (const more of form.querySelectorAll(".again")) more.remove();
    byId("day").value = isoDay(new Date());
    find();
    later();
  }));
  for (const id of ["cause", "horizon"]) byId(id).addEventListener("change", later);
  find();
  refresh();
}

begin();
