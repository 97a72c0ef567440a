// The data of the page: typed arrays that `explorer/packing.py` packed, and the questions that are asked of them.

const about = JSON.parse(document.getElementById("about").textContent);
const TOP = 65535; // a risk r is stored as the integer nearest to TOP · √r
const ARRAYS = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, f4: Float32Array };

function bytesOf(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text), bytes = new Uint8Array(binary.length);
  for (let k = 0; k < bytes.length; k++) bytes[k] = binary.charCodeAt(k);
  return bytes;
}

async function inflated(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Undo zigzag: 0, 1, 2, 3 … were 0, −1, 1, −2 …; with `running`, also add up what were differences. */
function unzigzag(array, running) {
  let sum = 0;
  for (let k = 0; k < array.length; k++) {
    const change = (array[k] >>> 1) ^ -(array[k] & 1);
    array[k] = sum = running ? sum + change : change;
  }
  return array;
}

/** The arrays of a block by name. Bytes were stored by their place: all first bytes, then all second ones … */
async function unpacked(id) {
  const block = about.blocks[id], bytes = await inflated(bytesOf(document.getElementById(id).textContent));
  const found = {};
  let at = 0;
  for (const [name, type, length, coding] of block.arrays) {
    const Kind = ARRAYS[type], width = Kind.BYTES_PER_ELEMENT, own = new Uint8Array(length * width);
    for (let place = 0; place < width; place++)
      for (let k = 0; k < length; k++) own[k * width + place] = bytes[at++];
    const array = new Kind(own.buffer);
    found[name] = coding ? unzigzag(array, coding === "differences") : array;
  }
  return found;
}

const data = { count: 0 }; // arrays of the patients; filled by `load`
let removals = null; // arrays of the single removals; filled by `loadRemovals`

async function load() {
  Object.assign(data, await unpacked("patients"));
  data.count = about.patients;
  data.landmarks = about.moments.slice(1).map((_, k) => data[`moment${k + 1}`]);
}

let waitingForRemovals = null;
function loadRemovals() {
  if (!about.edits) return Promise.resolve(null);
  waitingForRemovals ??= unpacked("removals").then((found) => (removals = found));
  return waitingForRemovals;
}

// ---- risks ---------------------------------------------------------------------------------------------------------

const causes = about.causes.length, points = about.curve_days.length;
const pointOf = about.horizons_days.map((day) => about.curve_days.indexOf(day)); // of a horizon on the curve
const stored = (q) => (q / TOP) ** 2;

/** Stored risk (0 … TOP) at a prediction time, of a cause, by a point of the curve. */
const rawRisk = (row, cause, point) => data.risk[(row * causes + cause) * points + point];
const riskAt = (row, cause, horizon) => stored(rawRisk(row, cause, pointOf[horizon]));

/** [day, risk] pairs of a whole curve, which begins at 0. */
function curveAt(row, cause) {
  return [[about.start_days, 0], ...about.curve_days.map((day, point) => [day, stored(rawRisk(row, cause, point))])];
}

// ---- who is who ----------------------------------------------------------------------------------------------------

const pseudonym = (patient) => `P${String(patient + 1).padStart(String(about.patients).length, "0")}`;
const dayOf = (hundredths) => hundredths / 100;
const rowsOf = (patient) => [data.row_offsets[patient], data.row_offsets[patient + 1]];
const visitsOf = (patient) => [data.visit_offsets[patient], data.visit_offsets[patient + 1]];
const ageAt = (patient, day) => (data.age[patient] === TOP ? NaN : data.age[patient] / 10 + day / 365.25);
const sexOf = (patient) => about.sexes[data.sex[patient]];

function ageWords(years) {
  if (Number.isNaN(years)) return "";
  return years >= about.oldest ? `${about.oldest}+` : String(Math.floor(years));
}

/** The prediction time of a patient at a moment: 0 is the latest; then the landmarks. −1 where there is none. */
function rowAt(patient, moment) {
  return moment === 0 ? data.row_offsets[patient + 1] - 1 : data.landmarks[moment - 1][patient] - 1;
}

/** The items of a patient's visits: calls `visit(number, day)`, and for each of its codes `item(code, value)`. */
function eachItem(patient, visit, item) {
  const [first, last] = visitsOf(patient);
  for (let v = first; v < last; v++) {
    visit(v - first, dayOf(data.visit_day[v]));
    for (let k = data.item_offsets[v]; k < data.item_offsets[v + 1]; k++)
      item(data.item_code[k], data.item_value[k], v - first);
  }
}

// ---- single removals -----------------------------------------------------------------------------------------------

/** The number of the edit that strikes a target (a code, or the codes' number + a visit); −1 without an answer. */
function editOf(patient, target) {
  if (!removals) return -1;
  let low = removals.edit_offsets[patient], high = removals.edit_offsets[patient + 1];
  const end = high;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (removals.target[middle] < target) low = middle + 1;
    else high = middle;
  }
  return low < end && removals.target[low] === target ? low : -1;
}

/** Risks of an edited record, [cause][horizon], at a prediction time; null where they were not computed in advance. */
function removedRisk(patient, target, row) {
  const edit = editOf(patient, target);
  if (edit < 0) return null;
  const [start] = rowsOf(patient), number = row - start - removals.first_row[edit];
  if (number < 0) return null;
  const at = (removals.answer_offsets[edit] + number) * causes * pointOf.length;
  return about.causes.map((_, cause) => pointOf.map((point, horizon) => {
    const change = removals.change[at + cause * pointOf.length + horizon]; // modulo 2¹⁶
    return stored((rawRisk(row, cause, point) + change) & TOP);
  }));
}
