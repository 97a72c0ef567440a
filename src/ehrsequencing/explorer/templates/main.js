// The page: what is chosen, what is drawn again when it changes, and the keyboard.

const state = {
  patient: -1, time: 0, cause: 0, horizon: about.main, moment: 0, order: "risk", search: "",
  brush: { low: 0, high: 1 }, kind: "codes", filter: "", all: false, focus: -1, struck: new Set(), done: [],
};

const horizonWords = () => duration(about.horizons_days[state.horizon]);
const momentWords = () => about.moments[state.moment];

let spoken = 0;
/** Tell screen readers, once the keys rest. */
function say(text) {
  clearTimeout(spoken);
  spoken = setTimeout(() => (byId("spoken").textContent = text), 250);
}

function selectPatient(patient) {
  state.patient = patient;
  const row = cohort.rows[patient];
  state.time = (row < 0 ? data.row_offsets[patient + 1] - 1 : row) - data.row_offsets[patient];
  Object.assign(state, { struck: new Set(), done: [], focus: -1, all: false });
  drawList();
  drawHistogram();
  refreshTime();
}

function selectTime(time) {
  const [start, end] = rowsOf(state.patient);
  state.time = Math.min(Math.max(time, 0), end - start - 1);
  refreshTime();
}

function refreshTime() {
  if (state.patient < 0) return;
  drawPatient();
  drawEdit();
  drawWhatIf();
  say(byId("sentence").textContent);
}

/** Another cause, horizon or moment. */
function refreshQuestion() {
  refreshCohort();
  refreshTime();
}

// ---- controls ------------------------------------------------------------------------------------------------------

function fillSelect(id, names, chosen, choose) {
  const select = byId(id);
  select.append(...names.map((name, k) => el("option", { value: k, selected: k === chosen }, name)));
  select.addEventListener("change", () => choose(Number(select.value)));
}

function pressed(name, value) {
  document.querySelectorAll(`[data-${name}]`).forEach((button) => button.setAttribute("aria-pressed", String(button.dataset[name] === value)));
}

function listen() {
  fillSelect("cause", about.causes, state.cause, (k) => { state.cause = k; refreshQuestion(); });
  fillSelect("horizon", about.horizons_days.map(duration), state.horizon, (k) => { state.horizon = k; refreshQuestion(); });
  fillSelect("moment", about.moments, state.moment, (k) => { state.moment = k; refreshQuestion(); });
  byId("help-open").addEventListener("click", () => byId("help").showModal());
  byId("help-close").addEventListener("click", () => byId("help").close());
  document.querySelectorAll("[data-order]").forEach((button) => button.addEventListener("click", () => {
    state.order = button.dataset.order;
    pressed("order", state.order);
    byId("third").textContent = state.order === "surprise" ? "surprise" : "change";
    byId("list").scrollTop = 0;
    refreshList();
  }));
  document.querySelectorAll("[data-kind]").forEach((button) => button.addEventListener("click", () => {
    Object.assign(state, { kind: button.dataset.kind, focus: -1, all: false });
    pressed("kind", state.kind);
    drawWhatIf();
  }));
  byId("search").addEventListener("input", (event) => { state.search = event.target.value; byId("list").scrollTop = 0; refreshList(); drawCalibration(); });
  byId("filter").addEventListener("input", (event) => { state.filter = event.target.value; drawWhatIf(); });
  for (const id of ["low", "high"])
    byId(id).addEventListener("change", () => setBrush(Number(byId("low").value) / 100, Number(byId("high").value) / 100));
  byId("unbrush").addEventListener("click", () => setBrush(0, 1));
  byId("list").addEventListener("scroll", () => requestAnimationFrame(() => drawList()));
  byId("time").addEventListener("input", (event) => selectTime(Number(event.target.value)));
  byId("more").addEventListener("click", () => { state.all = true; drawWhatIf(); });
  byId("undo").addEventListener("click", undo);
  byId("clear").addEventListener("click", clearEdits);
  document.addEventListener("keydown", onKey);
}

const KEYS = {
  ArrowLeft: () => selectTime(state.time - 1), ArrowRight: () => selectTime(state.time + 1),
  ArrowUp: () => moveTarget(-1), ArrowDown: () => moveTarget(1), x: () => strike(state.focus), u: undo,
  j: () => moveInList(1), k: () => moveInList(-1), "/": () => byId("search").focus(), "?": () => byId("help").showModal(),
};

function onKey(event) {
  const at = event.target, isTyping = at.matches?.("input:not([type=range]), select, textarea") || byId("help").open;
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape" && at.id === "search") return byId("list").focus();
  if (isTyping || state.patient < 0) return;
  if (at.id === "list" && { ArrowUp: 1, ArrowDown: 1 }[event.key]) {
    event.preventDefault();
    return moveInList(event.key === "ArrowDown" ? 1 : -1);
  }
  const act = KEYS[event.key];
  if (!act) return;
  event.preventDefault();
  act();
}

async function begin() {
  listen();
  await load();
  refreshCohort();
  if (cohort.listed.length) selectPatient(cohort.listed[0]); // the first row, which is in sight
  requestAnimationFrame(() => requestAnimationFrame(() => loadRemovals().then(refreshTime).then(() => (document.body.dataset.state = "ready"))));
  performance.mark("painted");
}

begin().catch((error) => {
  byId("failed").hidden = false;
  byId("failed").textContent = `This page could not be drawn: ${error.message}. It needs a browser of 2023 or later.`;
  document.body.dataset.state = "failed";
});
