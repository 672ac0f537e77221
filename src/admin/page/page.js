// The web page of the admin port: queries the API and shows the answers.
//
// Every name, id and error comes from producers and brokers. It becomes text (textContent, or an attribute that this
// file chooses) and never markup. The page stores nothing but a token, until the tab is closed.
"use strict";

const POLL_MS = 2000;
const METRICS_EVERY_MS = 4000;
const DUE_EVERY_MS = 5000;
const ITEMS_EVERY_MS = 5000;
const ANSWER_WITHIN_MS = 8000;
const COMMAND_WITHIN_MS = 35000;
const LONGEST_PAUSE_MS = 15000;
const KEPT_MS = 10 * 60 * 1000;
const MOST_ROWS = 200;
const PAGE_ROWS = 25;
// Most applications queried one by one for an id, if the search names none.
const MOST_ASKED = 50;
// Most bytes of the name of a customer or an application.
const MOST_NAME = 200;
const MOST_LETTERS = 1000;
// About the most characters of dead letters in a save, which is kept in memory.
const MOST_SAVED = 256 << 20;

const TOKEN_KEY = "tidegate-token";
const SVG = "http://www.w3.org/2000/svg";

const STATES = {
  running: ["good", "all is well"],
  paused: ["warn", "no requests are taken at this moment"],
  standby: ["good", "another daemon serves the queue; this one takes over when it ends"],
  stuck: ["bad", "a due item has not left for long, or a part of the daemon makes no progress"],
  blocked: ["bad", "the broker has raised an alarm and accepts no messages"],
  waiting: ["bad", "the store cannot be reached; no requests are taken and no batches sent"],
  not_ready: ["bad", "not ready"],
  draining: ["warn", "shutting down"],
};

// ---- helpers -------------------------------------------------------------------------------------------------

const by = (id) => document.getElementById(id);

/** Makes an element; strings among the children become text. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

function draw(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Text of a producer or a broker, isolated so that it cannot change the direction of the text beside it. */
const foreign = (text, cut = false) => make("bdi", cut ? { class: "cut", title: text } : {}, text);

/** Sets a text only if it differs, so that a selection stays. */
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function button(text, act, kind = "") {
  const element = make("button", { type: "button", class: kind || null }, text);
  element.addEventListener("click", act);
  return element;
}

const whole = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 0 });
const count = (n) => whole.format(n);
const things = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

function rate(perSecond) {
  if (perSecond >= 100) return `${count(perSecond)}/s`;
  return `${perSecond.toFixed(perSecond >= 10 ? 1 : 2)}/s`;
}

function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let place = 0;
  while (n >= 1024 && place < units.length - 1) [n, place] = [n / 1024, place + 1];
  return `${place === 0 || n >= 100 ? Math.round(n) : n.toFixed(1)} ${units[place]}`;
}

/** A duration in ms, in its two largest units. */
function span(ms) {
  const s = Math.abs(ms) / 1000;
  if (s < 1) return `${Math.round(s * 1000)} ms`;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 60) return `${Math.floor(s)} s`;
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const first = units.findIndex(([, length]) => s >= length);
  const [name, length] = units[first];
  const [next, smaller] = units[first + 1];
  const rest = Math.floor((s % length) / smaller);
  return `${Math.floor(s / length)} ${name}${rest > 0 && s / length < 10 ? ` ${rest} ${next}` : ""}`;
}

/** A duration in microseconds. */
function shortTime(us) {
  if (us < 1000) return `${Math.round(us)} µs`;
  return us < 10000 ? `${(us / 1000).toFixed(1)} ms` : span(us / 1000);
}

/** The daemon's time, as its last answer showed it; the clock of this machine may differ. */
const now = () => Date.now() + clockAhead;
let clockAhead = 0;

function relative(ms) {
  const away = ms - now();
  if (Math.abs(away) < 1000) return "now";
  // Whole seconds, since tenths would flicker.
  const rounded = Math.abs(away) < 60000 ? Math.round(away / 1000) * 1000 : away;
  const text = span(rounded).replace(".0 s", " s");
  return rounded > 0 ? `in ${text}` : `${text} ago`;
}

const clock = (ms, options) => new Date(ms).toLocaleTimeString("en-GB", options);
const exact = (ms) => `${new Date(ms).toLocaleString("en-GB", { dateStyle: "medium" })} ${clock(ms)}` +
  ` (${new Date(ms).toISOString()})`;

/** The time of day, with the date if that is not today. */
function dated(ms) {
  const isToday = new Date(ms).toDateString() === new Date(now()).toDateString();
  return isToday ? clock(ms) : `${new Date(ms).toLocaleDateString("en-GB", { dateStyle: "medium" })}, ${clock(ms)}`;
}

function showTime(element, ms, none = "–") {
  if (ms === null || ms === undefined) {
    element.removeAttribute("title");
    return say(element, none);
  }
  element.title = exact(ms);
  say(element, relative(ms));
}

// ---- queries to the daemon -----------------------------------------------------------------------------------

class Unauthorized extends Error {}
/** The daemon answered and refused: 4xx. */
class Refused extends Error {}

const token = () => sessionStorage.getItem(TOKEN_KEY);

/** A path made of names. A browser reads a name of dots as a step up, even if it is escaped. */
function path(...segments) {
  return "/api/v1" + segments.map((segment) => {
    if (segment === "." || segment === "..") {
      throw new Refused(`A browser cannot ask for the name "${segment}": the command line can.`);
    }
    return `/${encodeURIComponent(segment)}`;
  }).join("");
}

function query(parameters) {
  const all = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value));
  return all.size ? `?${all}` : "";
}

async function ask(method, where, within = ANSWER_WITHIN_MS) {
  const headers = token() ? { Authorization: `Bearer ${token()}` } : {};
  // Relative to the page, which may be below the path of a proxy.
  const response = await fetch(`.${where}`, { method, headers, cache: "no-store", redirect: "error",
    signal: AbortSignal.timeout(within) });
  if (response.status === 401) throw new Unauthorized();
  const text = await response.text();
  if (where === "/metrics" && response.ok) return text;
  let document = {};
  try {
    document = JSON.parse(text);
  } catch {
    throw new Error(`the answer is not JSON, status ${response.status}`);
  }
  // `unknown` is a result.
  if (response.ok || response.status === 404) return document;
  const fault = document.error || document.result || `status ${response.status}`;
  if (response.status === 503) throw new Error(fault);
  throw new Refused(fault);
}

const fault = (error) => error.name === "TimeoutError" ? "the daemon did not answer in time" :
  error instanceof TypeError ? "it cannot be reached" :
  error instanceof Unauthorized ? "the token is no longer accepted" : error.message;

// ---- the page's state ----------------------------------------------------------------------------------------

let board = null;
let timeline = null;
let answeredAt = 0;
let silentSince = 0;
let pause = 0;
let timer = 0;
let polling = false;
const nextDue = new Map();
const due = { span: "minute", application: "", at: 0, pause: DUE_EVERY_MS, asked: 0, open: 0 };
const traffic = { of: "", samples: [] };
const late = { of: "recent", at: 0, served: "", samples: [] };
const list = { at: 0, filter: { customer: "", application: "", state: "" }, rows: [], next: null, missing: [], pages: 1, asked: 0, open: 0 };

/** Where several nodes share the shards: those whose items an answer is without. */
const missingOf = (told) => told.missing_shards ?? [];
const notTold = (missing) => missing.length === 0 ? "" :
  ` Not all: the items of ${missing.length > 1 ? "shards" : "shard"} ${missing.join(", ")} are missing, since no node tells of them.`;

/** What counters belong to: those of two states are comparable only if the same owners tell of the same shards. */
const servedBy = (state) => JSON.stringify([state.started_at, missingOf(state),
  state.shards.map(({ shard, owner, epoch }) => [shard, owner, epoch])]);

// ---- polling -------------------------------------------------------------------------------------------------

/** One round of queries, and the time of the next one. A hidden page queries nothing. */
async function round() {
  clearTimeout(timer);
  if (polling || document.hidden) return;
  polling = true;
  try {
    const state = await ask("GET", "/api/v1/state");
    answered(state);
    const at = Date.now();
    if (at - late.at >= METRICS_EVERY_MS) await part(askLateness, late, "late-text");
    if (at - due.at >= due.pause) beside(askTimeline, due, "due-text");
    if (at - list.at >= ITEMS_EVERY_MS && list.pages === 1) beside(askItems, list, "items-text");
    pause = POLL_MS;
  } catch (error) {
    if (error instanceof Unauthorized) {
      polling = false;
      return signIn(token() ? "This token is not accepted." : "");
    }
    silent(error);
  }
  polling = false;
  timer = setTimeout(round, pause);
}

/** A query beside the state. The daemon answers, so an error of this query is shown in its own section. */
async function part(question, kept, place) {
  try {
    await question();
  } catch (error) {
    if (error instanceof Unauthorized) throw error;
    kept.at = Date.now();
    say(by(place), `The update failed: ${fault(error)}. The values shown are older.`);
  }
}

/**
 * A query over many items, which may take long: the rounds go on meanwhile. A token that is no longer accepted ends
 * the next round.
 */
function beside(question, kept, place) {
  if (kept.open === 0) part(question, kept, place).catch(() => {});
}

/** An answer for a section, counted while it is open; null if a later question has replaced this one. */
async function askFor(kept, where, within) {
  const asked = ++kept.asked;
  kept.open += 1;
  try {
    const told = await ask("GET", where, within);
    return asked === kept.asked ? told : null;
  } catch (error) {
    if (asked !== kept.asked) return null;
    throw error;
  } finally {
    kept.open -= 1;
  }
}

function answered(state) {
  board = state;
  answeredAt = Date.now();
  silentSince = 0;
  clockAhead = state.at - answeredAt;
  by("silence").hidden = true;
  by("board").classList.remove("stale");
  by("board").hidden = false;
  by("sign-in").hidden = true;
  by("sign-out").hidden = !token();
  sample(state);
  showAll();
}

function silent(error) {
  silentSince = silentSince || Date.now();
  pause = Math.min(Math.max(pause, POLL_MS / 2) * 2, LONGEST_PAUSE_MS);
  by("board").classList.add("stale");
  // The last state may have changed since.
  by("state").className = "pill bad";
  say(by("state"), "no answer");
  say(by("state-text"), board ? `last known state: ${board.state}` : "");
  document.title = "no answer – tidegate";
  by("silence").hidden = false;
  by("silence").dataset.reason = fault(error);
  silence(Date.now() + pause);
}

/** Shows since when the daemon has not answered, while that lasts. */
function silence(until) {
  if (until) by("silence").dataset.until = until;
  if (by("silence").hidden) return;
  const since = answeredAt || silentSince;
  const left = Math.max(0, Math.ceil((by("silence").dataset.until - Date.now()) / 1000));
  say(by("silence-text"), `No answer since ${clock(since)}: ${by("silence").dataset.reason}. ` +
    "The values below are from then.");
  // A screen reader does not read this part at each change.
  say(by("silence-next"), `${span(Date.now() - since).replace(/\.\d s/, " s")} so far; next try in ${left} s.`);
}

function again() {
  pause = 0;
  due.at = late.at = 0;
  if (list.pages === 1) list.at = 0;
  round();
}

function signIn(text) {
  clearTimeout(timer);
  sessionStorage.removeItem(TOKEN_KEY);
  by("board").hidden = true;
  by("silence").hidden = true;
  by("sign-out").hidden = true;
  by("sign-in").hidden = false;
  by("state").className = "pill";
  say(by("state"), "locked");
  say(by("state-text"), "");
  say(by("about"), "");
  say(by("token-fault"), text);
  by("token").focus();
}

// ---- overall, figures ----------------------------------------------------------------------------------------

function showAll() {
  showOverall();
  showFigures();
  showRates();
  showApplications();
  showParked();
  showEnds();
}

function showOverall() {
  const [kind, text] = STATES[board.state] || ["warn", ""];
  by("state").className = `pill ${kind}`;
  say(by("state"), board.state);
  say(by("state-text"), board.missing.length ? `missing: ${board.missing.join(", ")}` : text);
  const about = by("about");
  about.title = `Started ${exact(board.started_at)}`;
  say(about, `version ${board.version} · up ${span(board.uptime_ms).replace(/\.\d s/, " s")}`);
  document.title = board.state === "running" ? "tidegate" : `${board.state} – tidegate`;
}

const figures = new Map();

function figure(name, value, under, kind = "", title = "") {
  if (!figures.has(name)) {
    const [number, below] = [make("span"), make("span", { class: "under" })];
    const row = make("div", {}, make("dt", {}, name), make("dd", {}, number, below));
    by("figures").append(row);
    figures.set(name, { row, number, below });
  }
  const { row, number, below } = figures.get(name);
  row.className = kind;
  row.title = title;
  say(number, value);
  say(below, under);
}

function showFigures() {
  const { items, totals, in_flight_batches: batches } = board;
  const next = items.next_due_at;
  figure("Waiting", count(items.waiting), next ? `next due ${relative(next)}` : "", "", next ? exact(next) : "");
  const oldest = items.due ? items.oldest_due_at : null;
  figure("Due", count(items.due), oldest ? `oldest ${relative(oldest)}` : "", "", oldest ? exact(oldest) : "");
  figure("In flight", count(items.in_flight), items.in_flight ? `in ${things(batches, "batch", "batches")}` : "");
  figure("Parked", count(items.parked), "", items.parked ? "bad" : "");
  figure("Open windows", count(items.windows), "");
  figure("Delivered", count(totals.confirmed), "since the start");
  const dead = Object.values(totals.dead).reduce((sum, n) => sum + n, 0);
  const reasons = Object.entries(totals.dead).filter(([, n]) => n > 0).map(([why, n]) => `${why} ${count(n)}`);
  figure("Dead letters", count(dead), dead ? reasons.join(", ") : "since the start");
}

/** The connections by side, state and notes, with the details of the first: with several shards there are many. */
function linkFacts() {
  const groups = new Map();
  for (const link of board.links) {
    const key = JSON.stringify([link.side, link.state, link.notes ?? []]);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(link);
  }
  return [...groups.values()].map((links) => {
    const { side, state, detail, notes = [] } = links[0];
    const told = [detail, ...notes].filter((text) => text).join("; ");
    const of = board.links.filter((link) => link.side === side).length;
    return [side, `${state}${of > 1 ? ` (${links.length} of ${of})` : ""}${told ? `: ${told}` : ""}`];
  });
}

function showEnds() {
  const facts = linkFacts();
  const { store, totals } = board;
  facts.push(["store", `${store.kind}, ${bytes(store.bytes)} used${store.free_bytes === undefined ? "" : `, ${bytes(store.free_bytes)} free`}; ` +
    `last commit ${store.last_commit_ms} ms, longest ${store.max_commit_ms} ms`]);
  facts.push(["totals", [["received", totals.received], ["accepted", totals.accepted],
    ["delivered", totals.confirmed], ["cancelled", totals.cancelled], ["replaced", totals.replaced],
    ["rejected", totals.rejected]].map(([name, n]) => `${count(n)} ${name}`).join(", ") +
    `; ${things(totals.returned, "batch", "batches")} returned, ${count(totals.nacked)} nacked`]);
  if (board.map) {
    const { forwarded, misplaced, bound, corrected, bind_failures: failed } = board.map;
    facts.push(["map", `forwarded: ${count(forwarded)} by the sharder, ${count(misplaced)} by shards; ` +
      `bindings: ${count(bound)} made, ${count(corrected)} corrected, ${count(failed)} failed`]);
  }
  if (board.shards.length > 1) {
    const states = new Map();
    for (const { state } of board.shards) states.set(state, (states.get(state) ?? 0) + 1);
    const missing = missingOf(board).length ? `; missing: ${missingOf(board).join(", ")}` : "";
    facts.push(["shards", [...states].map(([state, n]) => `${count(n)} ${state}`).join(", ") + missing]);
  }
  facts.push(["loop", `longest turn ${shortTime(board.longest_turn_us)}`]);
  const rows = by("ends");
  const told = [...rows.children].filter((_, n) => n % 2 === 0).map((name) => name.textContent);
  if (told.join() !== facts.map(([name]) => name).join()) {
    rows.replaceChildren(...facts.flatMap(([name]) => [make("dt", {}, name), make("dd", {}, make("bdi"))]));
  }
  facts.forEach(([, text], n) => say(rows.children[n * 2 + 1].firstChild, text));
}

// ---- charts --------------------------------------------------------------------------------------------------

const LEFT = 44, BELOW = 20, ABOVE = 8;

/** Rounds up to a number that suits the top of an axis. */
function roundUp(n) {
  if (n <= 1) return 1;
  const ten = 10 ** Math.floor(Math.log10(n));
  return [1, 2, 5, 10].map((step) => step * ten).find((step) => step >= n);
}

function frame(place, label, top, format, marks) {
  const box = by(place);
  const width = Math.max(box.clientWidth, 200), height = box.clientHeight || 132;
  const inner = { width: width - LEFT, height: height - ABOVE - BELOW };
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  for (const part of [0, 0.5, 1]) {
    const y = ABOVE + inner.height * (1 - part);
    svg.append(draw("line", { x1: LEFT, x2: width, y1: y, y2: y }));
    if (part > 0) svg.append(draw("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, format(top * part)));
  }
  // Labels end at the edges of the chart; a label that would touch the previous one is left out.
  let free = -Infinity;
  for (const [part, text] of marks) {
    const x = LEFT + inner.width * part, half = text.length * 3.2;
    const anchor = part < 0.02 ? "start" : part > 0.98 ? "end" : "middle";
    const from = anchor === "start" ? x : anchor === "end" ? x - 2 * half : x - half;
    if (from < free) continue;
    free = from + 2 * half + 10;
    svg.append(draw("text", { x, y: height - 5, "text-anchor": anchor }, text));
  }
  box.replaceChildren(svg);
  return { svg, ...inner };
}

/** A column chart; each column has a tooltip. */
function columns(place, label, bars, marks) {
  const top = roundUp(Math.max(2, ...bars.map((bar) => bar.value)));
  const { svg, width, height } = frame(place, label, top, (n) => count(n), marks);
  const step = width / bars.length, gap = Math.min(2, step / 4);
  const group = draw("g", { class: "columns" });
  bars.forEach((bar, n) => {
    const x = LEFT + n * step, tall = bar.value ? Math.max(1.5, height * bar.value / top) : 0;
    group.append(draw("g", {}, draw("title", {}, bar.title),
      draw("rect", { class: "hover", x, y: ABOVE, width: step, height }),
      draw("rect", { class: bar.unsure ? "unsure" : "", x: x + gap / 2, width: Math.max(0.5, step - gap), rx: 1,
        y: ABOVE + height - tall, height: tall })));
  });
  svg.append(group);
}

// ---- due times -----------------------------------------------------------------------------------------------

async function askTimeline() {
  const begun = Date.now();
  const told = await askFor(due, `/api/v1/timeline${query({ span: due.span, application: due.application })}`);
  if (!told) return;
  timeline = told;
  due.at = Date.now();
  // Slow queries are repeated less often, so that they take at most a twentieth of the daemon's reading.
  due.pause = Math.max(DUE_EVERY_MS, (due.at - begun) * 20);
  if (!due.application) nextDue.clear();
  for (const row of timeline.applications) nextDue.set(row.name, row.next_due);
  showTimeline();
  showApplications();
}

function showTimeline() {
  if (!timeline) return;
  const { from, at, bucket_ms: each, counts, counted_until: until } = timeline;
  const end = from + each * counts.length;
  const fine = each < 60000 ? {} : { hour: "2-digit", minute: "2-digit" };
  const bars = counts.map((value, n) => {
    const begin = from + n * each;
    const unsure = until !== null && begin + each > until;
    const when = `${clock(begin, fine)} to ${clock(begin + each, fine)}`;
    return { value, unsure, begin, title: `${when}: ${unsure ? "at least " : ""}${things(value, "item")}` };
  });
  const sum = counts.reduce((all, n) => all + n, 0);
  const marks = [0, 0.25, 0.5, 0.75, 1].map((part) => [part, clock(from + (end - from) * part, fine)]);
  columns("due-chart", `Items due from ${clock(from, fine)} to ${clock(end, fine)}, in columns of ${span(each)}`,
    bars, marks);
  const most = bars.reduce((best, bar) => bar.value > best.value ? bar : best, bars[0]);
  const named = { minute: "minute", hour: "hour", day: "day" }[due.span];
  const length = span(each).replace(".0", "").replace(/^1 /, "");
  let text = sum === 0 ? `Nothing becomes due within the next ${named}.` :
    `${until === null ? "" : "At least "}${things(sum, "item becomes", "items become")} due within the next ` +
    `${named}; most at ${clock(most.begin, fine)}: ${count(most.value)} in ${/^\d/.test(length) ? length : `a ${{ s: "second", min: "minute", h: "hour" }[length]}`}.`;
  if (until !== null && until > at) {
    text += ` There are more items than one count reads: it is exact until ${clock(until)}.`;
  }
  text += notTold(missingOf(timeline));
  if (timeline.applications_truncated) text += " There are more applications than one count reads.";
  const apart = board && !due.application ? [["due already", board.items.due], ["parked", board.items.parked]] : [];
  const some = apart.filter(([, n]) => n > 0).map(([name, n]) => `${name} (${count(n)})`);
  if (some.length) text += ` Not included: ${some.join(", ")}.`;
  say(by("due-text"), text);
  if (by("due-details").open) showDueRows(bars, fine);
}

function showDueRows(bars, fine) {
  const rows = bars.filter((bar) => bar.value > 0).map((bar) => make("tr", {},
    make("td", { title: exact(bar.begin) }, clock(bar.begin, fine)),
    make("td", { class: "number" }, `${bar.unsure ? "at least " : ""}${count(bar.value)}`)));
  by("due-rows").replaceChildren(...(rows.length ? rows : [make("tr", {}, make("td", { colspan: 2 }, "none"))]));
}

// ---- throughput ----------------------------------------------------------------------------------------------

/** Rates are differences of counters, which restart with each process and jump when a shard comes or goes. */
function sample(state) {
  const served = servedBy(state);
  if (traffic.of !== served) [traffic.of, traffic.samples] = [served, []];
  const { samples } = traffic;
  samples.push({ at: state.at, came: state.totals.accepted, left: state.totals.confirmed });
  while (samples.length > 2 && samples[0].at < state.at - KEPT_MS) samples.shift();
}

function between(a, b) {
  const seconds = Math.max(0.001, (b.at - a.at) / 1000);
  return { at: b.at, came: Math.max(0, b.came - a.came) / seconds, left: Math.max(0, b.left - a.left) / seconds };
}

function showRates() {
  const { samples } = traffic;
  const points = samples.slice(1).map((sample, n) => between(samples[n], sample));
  const last = samples[samples.length - 1];
  const before = samples.find((sample) => sample.at >= last.at - 11000);
  const present = points.length ? between(before === last ? samples[samples.length - 2] : before, last) : null;
  say(by("rate-in"), present ? rate(present.came) : "–");
  say(by("rate-out"), present ? rate(present.left) : "–");
  const length = Math.max(60000, Math.min(KEPT_MS, last.at - samples[0].at));
  const top = roundUp(Math.max(1, ...points.flatMap((point) => [point.came, point.left])));
  const { svg, width, height } = frame("rates-chart", `Items per second, in and out, over ${span(length)}`, top,
    (n) => n < 1 ? n.toFixed(1) : count(n), [[0, `${span(length).replace(".0", "")} ago`], [1, "now"]]);
  for (const [key, name] of [["came", "in"], ["left", "out"]]) {
    const at = (point) => [LEFT + width * Math.max(0, 1 - (last.at - point.at) / length),
      ABOVE + height * (1 - point[key] / top)].map((n) => n.toFixed(1)).join(",");
    if (points.length > 1) svg.append(draw("polyline", { class: name, points: points.map(at).join(" ") }));
  }
  say(by("rates-text"), points.length ? "Items accepted and delivered per second; the numbers are averages of the last 10 s." :
    "Rates are measured from the time this page was opened, or a shard last came or went.");
}

// ---- lateness ------------------------------------------------------------------------------------------------

/** The daemon's histogram: the number of items that left no later than each bound, in seconds. */
function readHistogram(text) {
  const line = /^tidegate_publish_lateness_seconds_bucket\{le="([^"]+)"\} (\d+)/gm;
  return [...text.matchAll(line)].map(([, bound, n]) => [bound === "+Inf" ? Infinity : Number(bound), Number(n)]);
}

async function askLateness() {
  late.at = Date.now();
  const sums = readHistogram(await ask("GET", "/metrics"));
  const served = servedBy(board);
  if (late.served !== served) [late.served, late.samples] = [served, []];
  late.samples.push({ at: board.at, sums });
  while (late.samples.length > 2 && late.samples[0].at < board.at - KEPT_MS) late.samples.shift();
  showLateness();
}

/** The bound that this share of the items does not exceed. */
function quantile(sums, part) {
  const all = sums[sums.length - 1][1];
  const found = sums.find(([, n]) => n >= all * part);
  return found ? found[0] : Infinity;
}

const bound = (seconds) => seconds === Infinity ? "more than 10 min" : shortTime(seconds * 1e6).replace(".0", "");

function showLateness() {
  const { samples } = late;
  if (!samples.length) return;
  const newest = samples[samples.length - 1];
  const recent = late.of === "recent";
  const sums = recent ? newest.sums.map(([le, n], place) => [le, n - samples[0].sums[place][1]]) : newest.sums;
  const all = sums.length ? sums[sums.length - 1][1] : 0;
  const bars = sums.map(([le, n], place) => {
    const value = n - (place ? sums[place - 1][1] : 0);
    const above = place ? sums[place - 1][0] : 0;
    const range = le === Infinity ? "more than 10 min" : `${place ? `${bound(above)} to ` : "up to "}${bound(le)}`;
    return { value, title: `${range}: ${things(value, "item")}` };
  });
  const marks = sums.map(([le], place) => [place, le]).filter(([, le]) => [0.001, 0.01, 0.1, 1, 10, 60].includes(le))
    .map(([place, le]) => [(place + 1) / sums.length, bound(le)]);
  columns("late-chart", "Items by how late they left", bars, marks);
  const of = board.lateness;
  const facts = recent ?
    [["half within", 0.5], ["99 % within", 0.99], ["99.9 % within", 0.999]].map(([name, part]) =>
      [name, all ? bound(quantile(sums, part)) : "–"]) :
    [["half within", of.p50_us], ["99 % within", of.p99_us], ["99.9 % within", of.p999_us], ["latest", of.max_us]]
      .map(([name, us]) => [name, of.count ? shortTime(us) : "–"]);
  by("late-figures").replaceChildren(...facts.map(([name, value]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, value))));
  const length = Math.max(0, newest.at - samples[0].at);
  const scale = "Moment of publish minus due; each column is a bucket of the daemon's histogram.";
  say(by("late-text"), !recent ? `${things(of.count, "item")} since the start. ${scale}` :
    all ? `${things(all, "item")} in the last ${span(length)}. ${scale}` :
      `No item has left in the ${span(Math.max(length, 1000)).replace(".0", "")} since this page was opened.`);
}

// ---- tables --------------------------------------------------------------------------------------------------

/** Updates rows by key: rows that stay keep their focus, and only differences are written. */
function table(body, rows, create, empty) {
  const known = body.known || (body.known = new Map());
  const keys = new Set(rows.map(([key]) => key));
  for (const [key, row] of known) {
    if (!keys.has(key)) {
      row.element.remove();
      known.delete(key);
    }
  }
  let before = null;
  for (const [key, data] of rows) {
    if (!known.has(key)) known.set(key, create(key, data));
    const row = known.get(key);
    const next = before ? before.nextSibling : body.firstChild;
    if (row.element !== next) body.insertBefore(row.element, next);
    row.show(data);
    before = row.element;
  }
  const none = body.querySelector("td.empty");
  if (rows.length) return none && none.parentElement.remove();
  const across = body.parentElement.querySelectorAll("thead th").length;
  if (!none) body.append(make("tr", {}, make("td", { class: "empty note", colspan: across })));
  say(body.querySelector("td.empty"), empty);
}

/** A row whose cells have the table's headings as labels, which a narrow screen shows beside them. */
function cells(body, ...classes) {
  const labels = [...body.parentElement.querySelectorAll("thead th")].map((th) => th.textContent);
  const all = classes.map((kind, n) => make("td", { class: kind || null, "data-label": labels[n] }));
  return { element: make("tr", {}, ...all), cells: all };
}

function number(cell, n) {
  say(cell, count(n));
  cell.classList.toggle("zero", n === 0);
}

/** Replaces the children of a cell if the key of its content has changed. */
function fill(cell, key, children) {
  if (cell.dataset.key === key) return;
  cell.dataset.key = key;
  cell.replaceChildren(...children());
}

// ---- applications, parked ------------------------------------------------------------------------------------

const errorOf = (application) => application.last_error || "";

function showApplications() {
  if (!board) return;
  const part = by("application-filter").value.toLowerCase();
  const fits = board.applications.filter((a) => a.name.toLowerCase().includes(part));
  const rows = fits.slice(0, MOST_ROWS).map((a) => [`a${a.name}`, a]);
  if (board.dead_letters && !part) rows.push(["dead letters", board.dead_letters]);
  const none = part ? "No application has this text in its name." :
    "No application has items. An application appears with its first request.";
  table(by("applications"), rows, applicationRow, none);
  const left = fits.length - Math.min(fits.length, MOST_ROWS);
  const more = board.applications_truncated ? ` The daemon lists ${count(board.applications.length)} of ${count(board.applications_total)}.` : "";
  say(by("applications-text"), `${left ? `${count(left)} more: enter a part of the name above.` : ""}${more}${notTold(missingOf(board))}`.trim());
  offer(board.applications.map((a) => a.name));
}

function applicationRow() {
  const body = by("applications");
  const row = cells(body, "name lead", "", "number", "time", "number", "number", "number", "error", "actions");
  const [name, state, waiting, next, dueNow, flying, parked, error, actions] = row.cells;
  row.show = (a) => {
    const isDead = a.name === "";
    fill(name, a.name, () => [isDead ? make("em", {}, "dead letters") : foreign(a.name, true)]);
    const slow = (a.rate ? `, ${a.rate}${a.held ? `, ${count(a.held)} held back` : ""}` : "") +
      (a.paused_customers ? `, ${things(a.paused_customers, "customer")} paused` : "");
    const [held, kind] = a.paused ? [a.paused_until ? `paused until ${dated(a.paused_until)}` : "paused", "warn"] : [a.state, a.state === "parked" ? "bad" : a.state === "open" ? "good" : ""];
    const word = `${held}${slow}`;
    fill(state, word, () => [make("span", { class: `pill ${kind}`, title: a.paused_until ? exact(a.paused_until) : null }, word)]);
    number(waiting, a.waiting);
    number(dueNow, a.due);
    number(flying, a.in_flight);
    number(parked, a.parked);
    // The item that was next at the last count may have left since; another one is then due about now.
    const ahead = nextDue.get(a.name);
    showTime(next, a.oldest_due_at ?? (isDead || !ahead ? null : Math.max(ahead, now())));
    fill(error, errorOf(a), () => errorOf(a) ? [foreign(errorOf(a), true)] : []);
    fill(actions, `${a.paused}${a.windows > 0}${a.total > 0}`, () => isDead ? [] : [a.paused ?
      button("Resume…", () => orderApplication(a.name, "resume")) : button("Pause…", () => orderApplication(a.name, "pause")),
      ...(a.windows > 0 ? [button("Flush…", () => orderApplication(a.name, "flush"))] : []),
      ...(a.total > 0 ? [button("Cancel…", () => cancelSelected(a.name), "danger")] : [])]);
  };
  return row;
}

function showParked() {
  const isParked = (a) => a.state === "parked" || a.parked > 0;
  const all = board.applications.concat(board.dead_letters || []).filter(isParked);
  by("parked-table").hidden = all.length === 0;
  table(by("parked"), all.slice(0, MOST_ROWS).map((a) => [`a${a.name}`, a]), parkedRow, "");
  say(by("parked-text"), all.length === 0 ? "Nothing is parked. Items that cannot be delivered appear here, with the reason." :
    all.length > MOST_ROWS ? `${count(all.length - MOST_ROWS)} more.` : "");
}

function parkedRow() {
  const row = cells(by("parked"), "name lead", "number", "number", "time", "error", "actions");
  const [name, items, failures, next, reason, actions] = row.cells;
  row.show = (a) => {
    fill(name, a.name, () => [a.name ? foreign(a.name, true) : make("em", {}, "dead letters")]);
    number(items, a.parked);
    number(failures, a.failures || 0);
    const wait = a.next_try_in_ms;
    next.title = wait === undefined ? "" : exact(board.at + wait);
    say(next, wait === undefined ? "leaves now" : wait < 1000 ? "now" : `in ${span(Math.round(wait / 1000) * 1000).replace(".0", "")}`);
    fill(reason, errorOf(a), () => errorOf(a) ? [foreign(errorOf(a), true)] : []);
    fill(actions, `${a.state} ${a.paused} ${a.parked > 0}`, () => a.name === "" ? [] : [
      ...(a.state === "parked" && !a.paused ? [button("Try now…", () => orderApplication(a.name, "retry"))] : []),
      ...(a.parked > 0 ? [button("Drop…", () => dropParked(a.name), "danger")] : [])]);
  };
  return row;
}

/** The key of a row. Names may contain any character, so that simply joined names could be ambiguous. */
const keyOf = (names) => JSON.stringify(names);

/** Offers the names of applications in the two fields that take one. */
function offer(names) {
  const key = keyOf(names);
  if (offer.key === key) return;
  offer.key = key;
  // The field would drop line breaks, and may then name another application.
  const typed = names.filter((name) => !/[\r\n]/.test(name));
  by("known-applications").replaceChildren(...typed.map((name) => make("option", { value: name })));
  const select = by("due-application");
  const chosen = due.application;
  const all = chosen && !names.includes(chosen) ? [chosen, ...names] : names;
  select.replaceChildren(make("option", { value: "" }, "all applications"),
    ...all.map((name) => make("option", { value: name }, name)));
  select.value = chosen;
}

// ---- items ---------------------------------------------------------------------------------------------------

const askItems = () => askPage(false);

async function askPage(further) {
  const { customer, application, state } = list.filter;
  const page = await askFor(list, `/api/v1/items${query({ customer, application, state, limit: PAGE_ROWS,
    cursor: further ? list.next : "" })}`, COMMAND_WITHIN_MS);
  if (!page) return;
  list.at = Date.now();
  list.pages = further ? list.pages + 1 : 1;
  list.rows = further ? list.rows.concat(page.items) : page.items;
  list.next = page.next;
  list.missing = [...new Set([...further ? list.missing : [], ...missingOf(page)])].sort((a, b) => a - b);
  showItems();
}

function showItems() {
  const rows = list.rows.map((item, n) => [keyOf([item.application, item.id, item.received, item.id ? null : n]), item]);
  const filtered = Object.values(list.filter).some(Boolean);
  const none = list.next ? "None so far; there are more items to search." :
    list.filter.customer ? "No customer of this name has items that have not ended." :
      filtered ? "No item matches." :
        "No items. A pushed item appears here until it has left.";
  table(by("rows"), rows, itemRow, none);
  by("more").hidden = !list.next;
  const paged = list.pages > 1 ? " The list is not updated while more than one page is shown; Search or Clear updates it." : "";
  const shown = list.rows.length ? `${list.next ? "The first " : ""}${things(list.rows.length, "item")}, in order of due.${paged}` : "";
  say(by("items-text"), `${shown}${notTold(list.missing)}`.trim());
}

function itemRow() {
  const row = cells(by("rows"), "time", "", "name", "name", "name", "number", "error", "actions");
  const [when, state, application, customer, id, attempts, error, actions] = row.cells;
  row.show = (item) => {
    showTime(when, item.due);
    fill(state, item.state, () => [make("span", { class: `pill ${item.state === "parked" ? "bad" : ""}` }, item.state)]);
    fill(application, item.application, () => [foreign(item.application, true)]);
    fill(customer, item.customer || "", () => item.customer === null ? ["–"] : [link(item.customer, () =>
      search({ name: item.customer, application: item.application }))]);
    fill(id, item.id || "", () => item.id === null ? ["–"] : [link(item.id, () => showFound([lifeOf(item.application, item.id, item)]))]);
    number(attempts, item.attempts);
    fill(error, errorOf(item), () => errorOf(item) ? [foreign(errorOf(item), true)] : []);
    fill(actions, "", () => item.id === null ? [] : [button("Cancel…", () => cancelItem(item.application, item.id))]);
  };
  return row;
}

function link(text, act) {
  const element = button("", act, "link");
  element.append(foreign(text, true));
  return element;
}

async function showFound(cards) {
  const told = (await Promise.all(cards.map((card) => card.catch((error) => note(fault(error)))))).filter(Boolean);
  by("found").replaceChildren(...told);
  return told.length;
}

const note = (text) => make("p", { class: "note" }, text);

const hasEnded = (item) => ["sent", "cancelled", "expired", "dead"].includes(item.state);

/** The steps of an item so far. */
async function lifeOf(application, id, row = null) {
  const item = await ask("GET", path("items", application, id), COMMAND_WITHIN_MS);
  if (item.state === "unknown") return row ? note(`"${id}" has ended and is no longer remembered.`) : null;
  // A look-up does not contain the time of arrival; the row in the list does, until the item has ended.
  const listed = row || await rowOf(item);
  const steps = [];
  const step = (at, text, kind = "") => steps.push({ at, text, kind });
  if (listed) step(listed.received, "received");
  const ended = hasEnded(item) ? item.state : null;
  if (item.due !== null) step(item.due, item.due > now() ? "due" : "was due", item.due > now() && !ended ? "to-come" : "");
  if (item.retry) step(null, `sent back by its consumer, ${things(item.retry, "time", "times")}`);
  if (item.attempts > 0) step(null, things(item.attempts, "attempt failed", "attempts failed"), "bad");
  if (ended) step(item.at, `${ended}${item.reason ? `: ${item.reason}` : ""}${item.batch ? `, in batch ${item.batch}` : ""}`,
    ended === "sent" ? "" : "bad");
  else if (item.state !== "waiting") step(null, item.state === "in_flight" ? "in flight: published, and not settled" : "parked: its application cannot be delivered to", item.state === "parked" ? "bad" : "");
  const facts = [["application", item.application], ["customer", item.customer ?? "–"], ["state", item.state]];
  if (item.last_error) facts.push(["last error", item.last_error]);
  const life = steps.map(({ at, text, kind }) => make("li", { class: kind || null },
    `${text}${at === null ? "" : " "}`, at === null ? null : make("time", { title: exact(at), datetime: new Date(at).toISOString() }, `${relative(at)}, ${clock(at)}`)));
  const buttons = make("div", { class: "buttons" });
  if (!ended) buttons.append(button("Cancel this item…", () => cancelItem(application, id), "danger"));
  buttons.append(button("Close", () => by("found").replaceChildren()));
  return make("article", { class: "card", "data-of": "item" }, make("h3", {}, "Item ", foreign(id)),
    make("dl", { class: "facts" }, ...facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, foreign(value))])),
    make("ul", { class: "life" }, ...life), buttons);
}

async function rowOf(item) {
  if (item.due === null || hasEnded(item)) return null;
  const page = await ask("GET", `/api/v1/items${query({ application: item.application, from: item.due, to: item.due + 1 })}`);
  return page.items.find((row) => row.id === item.id) || null;
}

const countOf = (application, customer) => ask("GET", path("customers", application, customer), COMMAND_WITHIN_MS);
const sumOf = (counts) => counts.waiting + counts.in_flight + counts.parked;

async function customerCard(application, customer) {
  const counts = await countOf(application, customer);
  if (sumOf(counts) === 0 && !counts.paused) return null;
  const when = make("dd");
  showTime(when, counts.next_due);
  const facts = [["application", foreign(application)], ["waiting", count(counts.waiting)], ["in flight", count(counts.in_flight)],
    ["parked", count(counts.parked)], ...(counts.paused ? [["paused", counts.paused_until ? `until ${exact(counts.paused_until)}` : "until it is resumed"]] : [])].flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]);
  return make("article", { class: "card", "data-of": "customer" }, make("h3", {}, "Customer ", foreign(customer)),
    make("dl", { class: "facts" }, ...facts, make("dt", {}, "next due"), when),
    make("div", { class: "buttons" },
      counts.paused ? button("Resume…", () => orderCustomer(application, customer, "resume")) :
        button("Pause…", () => orderCustomer(application, customer, "pause")),
      button("Flush the window…", () => flush(application, customer)),
      button("Cancel all…", () => cancelCustomer(application, customer), "danger"),
      button("Close", () => by("found").replaceChildren())));
}

/** The names are not read back from the fields: these drop line breaks, and may then name another customer. */
function search({ name, application = "", state = "" }) {
  by("search-name").value = name;
  by("search-application").value = application;
  by("search-state").value = state;
  return searchFor({ name, application, state });
}

const submitSearch = () => searchFor({ name: by("search-name").value, application: by("search-application").value,
  state: by("search-state").value });

/** A name may belong to a customer or an item: the search covers both. */
async function searchFor({ name, application, state }) {
  // Names of customers are shorter than ids.
  const isCustomer = new TextEncoder().encode(name).length <= MOST_NAME;
  list.filter = { customer: isCustomer ? name : "", application, state };
  by("found").replaceChildren(...(name ? [note("Searching…")] : []));
  try {
    const listed = askItems();
    if (name) {
      const known = board ? board.applications.map((a) => a.name) : [];
      const names = application ? [application] : known.slice(0, MOST_ASKED);
      await listed;
      const owners = application ? [application] : [...new Set(list.rows.map((row) => row.application))].slice(0, 5);
      const customers = isCustomer ? owners.map((of) => customerCard(of, name)) : [];
      const found = await showFound([...names.map((of) => lifeOf(of, name)), ...customers]);
      if (!found) {
        const some = !application && known.length > MOST_ASKED ? ` Ids were searched in ${MOST_ASKED} of ${count(known.length)} applications: enter one.` : "";
        by("found").replaceChildren(note(`No customer and no item of this name is known${application ? " to this application" : ""}.${some}${notTold(list.missing)}`));
      }
    }
    await listed;
  } catch (error) {
    if (error instanceof Unauthorized) return signIn("");
    by("found").replaceChildren(note(`The search failed: ${fault(error)}.`));
  }
}

// ---- actions: each asks first, with the number of items, and reports its result ------------------------------

let asking = 0;

/**
 * Asks before an action. `counted` returns the number of items, and perhaps another text for the button, which is
 * disabled until then. A change of one of `inputs` starts a new count. A late result of a closed dialog or of earlier
 * inputs is ignored.
 */
async function confirmed(title, text, counted, verb, danger, inputs) {
  let mine = ++asking;
  const dialog = by("ask"), yes = by("ask-yes"), no = by("ask-no");
  by("ask-title").replaceChildren(...title);
  by("ask-text").replaceChildren(...text);
  yes.className = danger ? "danger" : "primary";
  const decided = new Promise((resolve) => {
    const decide = (answer) => () => {
      resolve(answer);
      dialog.close();
    };
    yes.onclick = decide(true);
    no.onclick = decide(false);
    dialog.onclose = () => dialog.open || resolve(false);
  });
  dialog.showModal();
  no.focus();
  const tally = () => {
    const now = mine;
    yes.disabled = true;
    say(yes, verb);
    say(by("ask-count"), "Counting…");
    counted().then(([told, word]) => {
      if (now !== asking) return;
      say(by("ask-count"), told);
      if (word) say(yes, word);
      yes.disabled = false;
    }).catch((error) => {
      if (now !== asking) return;
      if (error instanceof Unauthorized) dialog.close();
      say(by("ask-count"), `The count failed: ${fault(error)}.`);
    });
  };
  inputs.forEach((input) => input.onchange = () => {
    if (mine !== asking) return;
    mine = ++asking;
    tally();
  });
  tally();
  return decided;
}

function outcome(good, ...children) {
  const element = make("div", { class: good ? "outcome" : "outcome bad" }, make("div", {}, ...children));
  element.append(button("Close", () => element.remove()));
  by("outcomes").append(element);
  while (by("outcomes").children.length > 3) by("outcomes").firstChild.remove();
  if (good) setTimeout(() => element.remove(), 20000);
}

/** Asks, runs the action, shows the result and updates the page; returns whether the action was tried. */
async function carryOut({ title, text, counted, verb, danger = false, inputs = [], method, where, told, about,
  act = (target) => ask(method, target, COMMAND_WITHIN_MS) }) {
  let target;
  try {
    target = where();
  } catch (error) {
    outcome(false, error.message);
    return false;
  }
  if (!await confirmed(title, text, counted, verb, danger, inputs)) return false;
  try {
    const answer = await act(target);
    outcome(!answer.stopped, told(answer), ...about);
  } catch (error) {
    if (error instanceof Unauthorized) {
      signIn("This token is not accepted.");
      return false;
    }
    const perhaps = error instanceof Refused ? "" : " It may still be carried out.";
    outcome(false, `Not done: ${fault(error)}.${perhaps}`, ...about);
  }
  list.at = due.at = 0;
  by("found").replaceChildren();
  if (list.pages > 1) askItems().catch(() => {});
  round();
  return true;
}

const cancelled = (answer) => {
  const words = {
    cancelled: () => `Cancelled: ${things(answer.count, "item")}` + (answer.in_flight ? `; ${count(answer.in_flight)} in flight may have left` : "") + ".",
    sent: () => `Too late: it was sent ${relative(answer.at)}.`,
    expired: () => "Too late: it has expired.",
    dead: () => `Too late: it is dead (${answer.reason}).`,
    in_flight: () => "It is in flight, and its outcome is not known yet: ask again.",
    unknown: () => "It is no longer known: nothing was cancelled.",
  };
  return (words[answer.result] || (() => JSON.stringify(answer)))();
};
const changed = (yes, no) => (answer) => answer.changed ? yes : no;
const of = (name) => [" ", foreign(name)];

const ORDERS = {
  pause: { verb: "Pause", text: "Its items are not published while it is paused. New requests are accepted, and wait.",
    told: (answer) => `${answer.changed ? "Paused" : "It was paused already"}${answer.until ? `, until ${exact(answer.until)}` : ""}:` },
  flush: { verb: "Flush", text: "All its open windows close now and leave before their time.",
    told: (answer) => answer.count ? `Flushed: ${things(answer.count, "item")} of` : "No window was open, nothing was flushed:" },
  resume: { verb: "Resume", text: "Items that were held back leave, in order.", told: changed("Resumed:", "It was not paused:") },
  retry: { verb: "Try now", text: "One batch is published at once. If it is delivered, the rest follows.",
    told: changed("Tried now:", "There was nothing to try, it is not parked or is paused:") },
};

async function countApplication(name) {
  const a = await ask("GET", path("applications", name));
  if (a.result === "unknown" || a.error) return ["It has no items at this moment."];
  return [`${things(a.total, "item")}: ${count(a.waiting)} waiting, ${count(a.due)} due, ${count(a.in_flight)} in flight, ${count(a.parked)} parked.`];
}

const PAUSES = [["", "until it is resumed"], [600000, "for 10 minutes"], [3600000, "for an hour"], [86400000, "for a day"]];

function orderApplication(name, order) {
  return orderOf(order, name, () => countApplication(name), () => path("applications", name, order));
}

function orderCustomer(application, customer, order) {
  const counted = async () => {
    const counts = await countOf(application, customer);
    return [`${things(sumOf(counts), "item")}: ${count(counts.waiting)} waiting, ${count(counts.in_flight)} in flight, ${count(counts.parked)} parked.`];
  };
  return orderOf(order, customer, counted, () => path("customers", application, customer, order));
}

function orderOf(order, name, counted, where) {
  const { verb, text, told } = ORDERS[order];
  const time = make("select", { id: "pause-for", "aria-label": "for how long" },
    ...PAUSES.map(([value, words]) => make("option", { value: `${value}` }, words)));
  const asked = order === "pause" ? [note(text), time] : [note(text)];
  return carryOut({ title: [`${verb}`, ...of(name), "?"], text: asked, counted, verb, where, told, about: of(name),
    act: (target) => ask("POST", target + (order === "pause" ? query({ for: time.value }) : ""), COMMAND_WITHIN_MS) });
}

function dropParked(name) {
  const counted = async () => {
    const a = await ask("GET", path("applications", name));
    if (!a.parked) throw new Refused("it has no parked items any more");
    return [`${things(a.parked, "item is", "items are")} parked and will be dropped.`, `Drop ${things(a.parked, "item")}`];
  };
  return carryOut({ title: ["Drop the parked items of", ...of(name), "?"],
    text: [note("They are cancelled without dead letters. This cannot be undone. Items that wait for their time stay.")], counted,
    verb: "Drop", danger: true, method: "DELETE", where: () => path("applications", name, "parked"), told: cancelled, about: of(name) });
}

function cancelSelected(name) {
  const prefix = make("input", { type: "text", id: "cancel-prefix", maxlength: "200" });
  const [after, before, received] = ["after", "before", "received"].map((id) => make("input", { type: "datetime-local", step: "1", id: `cancel-${id}` }));
  const inputs = [prefix, after, before, received];
  const moment = (input) => {
    if (input.validity.badInput) throw new Refused("a time is not complete");
    return input.value ? new Date(input.value).getTime() : "";
  };
  const chosen = () => {
    const some = { customer_prefix: prefix.value, due_after: moment(after), due_before: moment(before), received_before: moment(received) };
    return Object.values(some).some((value) => value !== "") ? some : { all: "true" };
  };
  const counted = async () => {
    const counts = await ask("GET", path("applications", name, "items") + query(chosen()), COMMAND_WITHIN_MS);
    const all = sumOf(counts);
    if (all === 0) throw new Refused("there are none");
    return [`${things(all, "item")}: ${count(counts.waiting)} waiting, ${count(counts.in_flight)} in flight, ${count(counts.parked)} parked.`,
      `Cancel ${things(all, "item")}`];
  };
  const line = (text, input) => make("label", { class: "line" }, `${text} `, input);
  return carryOut({ title: ["Cancel items of", ...of(name), "?"],
    text: [note("They will not be sent. Items that arrive from now on are not affected. Without a filter: all items of the application."),
      line("of customers that begin with", prefix), line("due at or after", after), line("due before", before), line("received before", received)],
    counted, inputs, verb: "Cancel", danger: true, where: () => path("applications", name, "items"), told: cancelled, about: of(name),
    act: (target) => ask("DELETE", target + query(chosen()), COMMAND_WITHIN_MS) });
}

function cancelItem(application, id) {
  const counted = async () => {
    const item = await ask("GET", path("items", application, id), COMMAND_WITHIN_MS);
    if (!["waiting", "in_flight", "parked"].includes(item.state)) throw new Refused(`it is ${item.state}`);
    const when = item.due === null ? "" : `, due ${relative(item.due)}`;
    return [`1 item, ${item.state}${when}.`];
  };
  return carryOut({ title: ["Cancel item", ...of(id), "?"], text: [make("p", { class: "note" }, "Of application", ...of(application), ". It will not be sent.")],
    counted, verb: "Cancel the item", danger: true, method: "DELETE", where: () => path("items", application, id), told: cancelled, about: of(id) });
}

function cancelCustomer(application, customer) {
  const counted = async () => {
    const counts = await countOf(application, customer);
    const all = sumOf(counts);
    if (all === 0) throw new Refused("there are none left");
    return [`${things(all, "item")}: ${count(counts.waiting)} waiting, ${count(counts.in_flight)} in flight, ${count(counts.parked)} parked.`,
      `Cancel ${things(all, "item")}`];
  };
  return carryOut({ title: ["Cancel all of customer", ...of(customer), "?"],
    text: [make("p", { class: "note" }, "Of application", ...of(application), ". Items that arrive from now on are not affected.")], counted,
    verb: "Cancel all", danger: true, method: "DELETE", where: () => path("customers", application, customer, "items"), told: cancelled, about: of(customer) });
}

function flush(application, customer) {
  const counted = async () => {
    const counts = await countOf(application, customer);
    return [`${things(counts.waiting, "item")} of this customer ${counts.waiting === 1 ? "waits" : "wait"}; of these, the items in the open window leave.`];
  };
  return carryOut({ title: ["Flush the window of", ...of(customer), "?"],
    text: [make("p", { class: "note" }, "Of application", ...of(application), ". It leaves now instead of at its end; items with their own time stay.")], counted,
    verb: "Flush", method: "POST", where: () => path("customers", application, customer, "flush"),
    told: (answer) => answer.count ? `Flushed: ${things(answer.count, "item")} of` : "No window was open, nothing was flushed:", about: of(customer) });
}

// ---- dead letters --------------------------------------------------------------------------------------------

const letters = { group: null };

/** No name in a query is empty: `unreadable` selects dead letters whose application could not be read. */
const groupQuery = ({ reason, application }) => application ? { reason, application } : { reason, unreadable: "true" };
const groupName = (group) => [" ", foreign(group.reason), ...(group.application ? [" of", ...of(group.application)] : [])];

/** How much of the queue was not read, and why. */
function unseen(told) {
  const behind = told.more ? ` Read ${count(told.looked_at)} of ${count(told.depth)}; there are more behind them.` : "";
  return behind + (told.stopped ? ` Not all could be read: ${told.stopped}.` : "");
}

/**
 * Reads the queue call by call, to its end or to `limit` dead letters. `each` gets each answer and returns their number in it.
 * A later call that fails ends the walk (`stopped`), since what the calls before it have done stays done.
 */
async function walkLetters(method, where, which, limit, each) {
  let place = { walk: "true" }, told = null;
  for (let left = limit; ;) {
    try {
      told = await ask(method, where + query({ ...which, limit: left || "", ...place }), COMMAND_WITHIN_MS);
    } catch (error) {
      if (!told) throw error;
      const perhaps = method === "GET" || error instanceof Refused ? "" : ", and the last call may still be carried out";
      return { ...told, more: true, stopped: fault(error) + perhaps, cursor: null, failed: true };
    }
    left -= each(told);
    if (!told.cursor || limit && left <= 0) return told;
    place = { cursor: told.cursor };
  }
}

/** Counts all dead letters, by reason and application. */
async function countAllLetters() {
  const groups = new Map();
  const told = await walkLetters("GET", path("dead", "count"), {}, 0, (told) => {
    for (const { reason, application, count: n } of told.groups) {
      const key = keyOf([reason, application]);
      groups.set(key, { reason, application, count: n + (groups.has(key) ? groups.get(key).count : 0) });
    }
    return 0;
  });
  return { ...told, groups: [...groups.values()] };
}

async function listLetters(which, limit) {
  const found = [];
  const told = await walkLetters("GET", path("dead"), which, limit, (told) => {
    found.push(...told.letters);
    return told.letters.length;
  });
  // What was not read may be what is looked for.
  if (told.stopped && !found.length) throw new Error(told.stopped);
  return found;
}

async function lookIntoLetters() {
  say(by("dead-text"), "Reading…");
  by("dead-look").disabled = true;
  try {
    const told = await countAllLetters();
    const rows = told.groups.slice(0, MOST_ROWS).map((group) => [keyOf([group.reason, group.application]), group]);
    by("dead-found").hidden = rows.length === 0;
    by("dead-save").hidden = rows.length === 0;
    table(by("dead-groups"), rows, groupRow, "");
    say(by("dead-text"), (rows.length ? `${things(told.depth, "letter")} at ${clock(now())}.` : "There are none.") + unseen(told));
    if (letters.group) await showLetters(letters.group);
  } catch (error) {
    if (error instanceof Unauthorized) return signIn("");
    say(by("dead-text"), `The queue cannot be read: ${fault(error)}.`);
  } finally {
    by("dead-look").disabled = false;
  }
}

function groupRow() {
  const row = cells(by("dead-groups"), "name lead", "name", "number", "actions");
  const [reason, application, n, actions] = row.cells;
  row.show = (group) => {
    fill(reason, group.reason, () => [foreign(group.reason)]);
    fill(application, group.application, () => [group.application ? foreign(group.application, true) : make("em", {}, "not readable")]);
    number(n, group.count);
    fill(actions, "these", () => [button("Show", () => showLetters(group)),
      button("Send back…", () => sendBack(groupQuery(group), groupName(group))),
      button("Drop…", () => dropLetters(groupQuery(group), groupName(group)), "danger")]);
  };
  return row;
}

async function showLetters(group) {
  letters.group = group;
  try {
    const found = await listLetters(groupQuery(group), PAGE_ROWS);
    by("dead-table").hidden = found.length === 0;
    // Dead letters of equal content have the same key.
    const rows = found.map((letter, n) => [`l${letter.key} ${n}`, letter]);
    table(by("dead-rows"), rows, letterRow, "");
  } catch (error) {
    if (error instanceof Unauthorized) return signIn("");
    say(by("dead-text"), `The queue cannot be read: ${fault(error)}.`);
  }
}

function letterRow() {
  const row = cells(by("dead-rows"), "name lead", "name", "number", "error", "actions");
  const [id, customer, size, error, actions] = row.cells;
  row.show = (letter) => {
    fill(id, letter.id || "", () => [letter.id ? foreign(letter.id, true) : make("em", {}, "none")]);
    fill(customer, letter.customer || "", () => letter.customer ? [foreign(letter.customer, true)] : []);
    number(size, letter.bytes);
    fill(error, letter.error || "", () => letter.error ? [foreign(letter.error, true)] : []);
    const name = of(letter.id || letter.key);
    fill(actions, letter.key, () => [button("Show", () => showLetter(letter.key)),
      button("Send back…", () => sendBack({ key: letter.key }, name)),
      button("Drop…", () => dropLetters({ key: letter.key }, name), "danger")]);
  };
  return row;
}

async function showLetter(key) {
  const shown = by("dead-letter");
  try {
    const [letter] = await listLetters({ key, whole: "true" }, 1);
    say(shown, letter ? JSON.stringify(letter, null, 2) : "It is no longer in the queue.");
  } catch (error) {
    if (error instanceof Unauthorized) return signIn("");
    say(shown, `It cannot be shown: ${fault(error)}.`);
  }
  shown.hidden = false;
}

async function countLetters(which) {
  if (which.key) {
    const [letter] = await listLetters(which, 1);
    if (!letter) throw new Refused("it is no longer in the queue");
    return ["1 letter."];
  }
  const told = await countAllLetters();
  const group = told.groups.find((one) => one.reason === which.reason && one.application === (which.application || ""));
  if (!group) throw new Refused(told.stopped || "there are none left");
  return [`${told.more ? "At least " : ""}${things(group.count, "letter")}; at most ${count(MOST_LETTERS)} at a time.`];
}

/** Runs an action on several dead letters, call by call. */
const toLetters = (method, which) => async (where) => {
  let done = 0, kept = 0;
  const told = await walkLetters(method, where, which, MOST_LETTERS, (told) => {
    kept += told.kept;
    done += told.count;
    return told.count;
  });
  // Of a call that failed it is not known how many have gone.
  return { ...told, count: done, kept, left: told.failed ? null : told.depth - done };
};

/** The sentence for such an action: how many were handled, kept and left. */
const handled = (verb) => (answer) => `${verb}: ${things(answer.count, "letter")}` +
  (answer.kept ? `; ${count(answer.kept)} kept: an envelope cannot get a new time` : "") +
  (answer.stopped ? `; stopped: ${answer.stopped}` : "") +
  (answer.left === null ? ":" : `; ${count(answer.left)} left in the queue:`);

async function change(order) {
  if (!await carryOut(order)) return;
  by("dead-letter").hidden = true;
  await lookIntoLetters();
}

function sendBack(which, name) {
  const at = by("dead-at").value;
  const text = at ? `Their new due is ${exact(new Date(at).getTime())}.` : "They become requests without a time, and leave at once or with their window.";
  return change({ title: ["Send back", ...name, "?"], verb: "Send back", method: "POST", counted: () => countLetters(which),
    text: [note(`${text} Each is removed from the dead-letter queue once its publish to the ingest queue is confirmed.`)],
    where: () => path("dead", "retry"), act: toLetters("POST", { ...which, at: at ? new Date(at).getTime() : "" }),
    told: handled("Sent back"), about: name });
}

function dropLetters(which, name) {
  return change({ title: ["Drop", ...name, "?"], verb: "Drop", danger: true, method: "DELETE", counted: () => countLetters(which),
    text: [note("This cannot be undone. To keep them, save them first.")],
    where: () => path("dead"), act: toLetters("DELETE", which), told: handled("Dropped"), about: name });
}

async function saveLetters() {
  const parts = [];
  let lines = 0, bytes = 0, without = 0, stopped = null;
  try {
    const headers = token() ? { Authorization: `Bearer ${token()}` } : {};
    for (let place = { walk: "true" }; place;) {
      const response = await fetch(`.${path("dead", "export")}${query(place)}`, { headers, cache: "no-store", redirect: "error",
        signal: AbortSignal.timeout(COMMAND_WITHIN_MS) });
      if (response.status === 401) return signIn("This token is not accepted.");
      const text = await response.text();
      if (!response.ok) throw new Error(JSON.parse(text).error);
      parts.push(text);
      lines += text.split("\n").length - 1;
      bytes += text.length;
      without += Number(response.headers.get("x-tidegate-bodies-left-out"));
      stopped = response.headers.get("x-tidegate-stopped");
      const cursor = response.headers.get("x-tidegate-cursor");
      place = cursor && bytes < MOST_SAVED ? { cursor } : null;
    }
  } catch (error) {
    return outcome(false, `Not saved: ${fault(error)}.`);
  }
  const address = URL.createObjectURL(new Blob(parts, { type: "application/x-ndjson" }));
  make("a", { href: address, download: "dead-letters.ndjson" }).click();
  URL.revokeObjectURL(address);
  outcome(!stopped && !without, `Saved: ${things(lines, "letter")}` +
    (without ? `; ${count(without)} without ${without === 1 ? "its body, which is" : "their bodies, which are"} longer than 8 MiB` : "") +
    `${stopped ? `; stopped: ${stopped}` : ""}.`);
}

// ---- events --------------------------------------------------------------------------------------------------

/** Marks one button of a group as pressed. */
function press(group, chosen) {
  for (const one of group.querySelectorAll("button")) one.setAttribute("aria-pressed", String(one === chosen));
}

function refreshTimeline() {
  due.at = 0;
  askTimeline().catch(silentlyAgain);
}

/** The next round shows the error; here a new round is enough. */
function silentlyAgain(error) {
  if (error instanceof Unauthorized) signIn("");
  else round();
}

by("spans").addEventListener("click", (event) => {
  if (!event.target.dataset.span) return;
  due.span = event.target.dataset.span;
  press(by("spans"), event.target);
  refreshTimeline();
});
by("due-application").addEventListener("change", (event) => {
  due.application = event.target.value;
  refreshTimeline();
});
by("due-details").addEventListener("toggle", showTimeline);
by("late-of").addEventListener("click", (event) => {
  if (!event.target.dataset.of) return;
  late.of = event.target.dataset.of;
  press(by("late-of"), event.target);
  showLateness();
});
by("application-filter").addEventListener("input", showApplications);
by("search").addEventListener("submit", (event) => {
  event.preventDefault();
  submitSearch();
});
by("search").addEventListener("reset", () => setTimeout(submitSearch));
by("dead-look").addEventListener("click", lookIntoLetters);
by("dead-save").addEventListener("click", saveLetters);
by("more").addEventListener("click", () => askPage(true).catch(silentlyAgain));
by("try-now").addEventListener("click", again);
by("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN_KEY, by("token").value.trim());
  by("token").value = "";
  again();
});
by("sign-out").addEventListener("click", () => {
  sessionStorage.removeItem(TOKEN_KEY);
  // The data that the token gave access to is discarded, too.
  location.reload();
});
document.addEventListener("visibilitychange", () => {
  if (document.hidden) clearTimeout(timer);
  else again();
});
let resized = 0;
addEventListener("resize", () => {
  clearTimeout(resized);
  resized = setTimeout(() => {
    if (!board) return;
    showRates();
    showTimeline();
    showLateness();
  }, 100);
});
setInterval(silence, 1000);
round();
