// The review page: keys and clicks become decisions, the queue sends them, and a poll every few seconds brings the
// decisions of other people.

import { setUpNewClass, similarAddress } from "./classes.js";
import { Entries } from "./entries.js";
import { setUpNewPhotos } from "./photos.js";
import { Queue, randomId } from "./queue.js";
import { browserStorage, tabStorage } from "./storage.js";
import { Team } from "./team.js";
import { Viewer } from "./viewer.js";

const POLL_INTERVAL = 3000;
const HIDDEN_POLL_INTERVAL = 15000;
const element = (id) => document.getElementById(id);

const page = {
  ...document.body.dataset,
  number: document.body.dataset.class,
  client: tabStorage.get("labelgap-client") ?? randomId(),
  shownAt: Number(document.body.dataset.lastId),
  settling: document.body.classList.contains("settle"),
};
tabStorage.set("labelgap-client", page.client);

// The reviewer: as given to the server, until another name is typed here.
const reviewerKey = `labelgap-reviewer/${page.store}/${page.reviewer}`;
page.reviewer = browserStorage.get(reviewerKey) ?? page.reviewer;
element("reviewer").value = page.reviewer;
element("reviewer").addEventListener("change", (event) => {
  const name = event.target.value.replace(/(?![\u200c\u200d\s])\p{C}/gu, "").trim().replace(/\s+/g, " ");
  if (name) {
    page.reviewer = name;
    browserStorage.set(reviewerKey, name);
    entries.list.forEach((entry) => entries.describe(entry));
  }
  event.target.value = page.reviewer;
});
element("reviewer").addEventListener("keydown", (event) => {
  if (event.key === "Enter" || event.key === "Escape") event.target.blur();
});

// Messages are popovers: over the enlarged image as well.
function showOnTop(message, shown) {
  message.hidden = !shown;
  message.hidePopover?.();
  if (shown) message.showPopover?.();
}

let hideTimer;
function notify(text, long = false) {
  element("toast").textContent = text;
  showOnTop(element("toast"), true);
  clearTimeout(hideTimer);
  hideTimer = setTimeout(() => showOnTop(element("toast"), false), long ? 12000 : 2500);
}

let problem = null;
function showProblem(kind, detail = "") {
  problem = kind;
  const waiting = queue.size ? `${queue.size.toLocaleString("en")} ${queue.size === 1 ? "answer waits" : "answers wait"} ` +
    "in this browser and will be sent" : "Nothing is lost: answers are sent";
  const text = {
    lost: `The server does not answer. ${waiting} as soon as it is back; you can continue.`,
    token: `The server restarted. ${waiting} once you open the address that it printed.`,
    store: `Another review is served at this address now. ${waiting} when ${page.name} is served here again.`,
    unsaved: `Answers cannot be saved at the moment: ${detail} ${waiting} as soon as that works.`,
    refused: `The server refuses what this page sends (${detail}). Please reload the page.`,
  }[kind];
  if (text) element("banner").textContent = text;
  showOnTop(element("banner"), Boolean(text));
}

function showStatus({ counters, panel, remaining }) {
  if (counters !== undefined) element("counters").innerHTML = counters;
  if (panel !== undefined) element("panel").innerHTML = panel;
  if (remaining !== undefined && remaining !== null) end = Date.now() + 1000 * remaining;
}

const queue = new Queue(page, (answer, batch) => {
  showStatus(answer);
  entries.onAnswer(answer, batch);
}, showProblem);
const entries = new Entries(page, queue, notify);
const viewer = new Viewer(entries);
const team = new Team(page, entries);

// The clock of a budget: it shows when time is up and stops nothing.
let end = page.remaining === "" ? null : Date.now() + 1000 * Number(page.remaining);
function tick() {
  if (end === null) return;
  const clock = element("clock");
  const seconds = Math.round((end - Date.now()) / 1000);
  const shown = `${Math.floor(Math.abs(seconds) / 60)}:${String(Math.abs(seconds) % 60).padStart(2, "0")}`;
  clock.hidden = false;
  clock.classList.toggle("up", seconds <= 0);
  clock.textContent = seconds > 0 ? `${shown} left` : "time is up";
  const key = `labelgap-time-up/${page.store}/${Math.round(end / 60000)}`;
  if (seconds <= 0 && !tabStorage.get(key)) {
    tabStorage.set(key, "1");
    notify("Time is up. Every answer is saved: stop here, or continue.", true);
  }
}
if (end !== null) {
  tick();
  setInterval(tick, 1000);
}

// The decisions of other people, and whether the server answers.
async function poll() {
  const query = new URLSearchParams({ since: page.lastId, reviewer: page.reviewer });
  if (page.number !== "") query.set("class", page.number);
  if (page.lease) query.set("lease", page.lease);
  if (page.ranking !== "" && page.size !== "") {
    query.set("ranking", page.ranking);
    query.set("size", page.size);
    if (page.aim) query.set("aim", page.aim);
  }
  const { answers } = queue;
  try {
    const response = await fetch(`/api/changes?${query}`, { signal: AbortSignal.timeout(10000) });
    const answer = await response.json();
    if (!response.ok) showProblem(["token", "unsaved"].includes(answer.problem) ? answer.problem : "lost", answer.detail);
    else if (answer.reload) location.reload();
    else {
      if ((problem === "lost" || problem === "token") && !queue.size) showProblem(null);
      if (answers === queue.answers) { // else this may be older than what is shown: the next poll brings the changes
        page.lastId = answer.last_id;
        if (!page.settling) entries.update(answer.changes);
      }
      showStatus(answer);
      showUpdate(answer.update);
      team.update(answer);
      if (queue.size) queue.send();
    }
  } catch {
    showProblem("lost");
  }
  setTimeout(poll, document.hidden ? HIDDEN_POLL_INTERVAL : POLL_INTERVAL);
}
setTimeout(poll, POLL_INTERVAL);
if (queue.size) queue.send();

// A newer ranking than that of the page: its order comes with the next page, or on a key; nothing moves by itself.
function showUpdate(update) {
  const button = element("update");
  if (!button) return;
  button.hidden = !update;
  if (!update) return;
  const decided = entries.list.filter((entry) => entry.dataset.value !== "").length;
  const count = update.ids.filter((id) => !entries.byId.has(id)).length - decided; // those take the places of the decided
  const many = (number, what) => `${number.toLocaleString("en")} ${what}${number === 1 ? "" : "s"}`;
  button.replaceChildren(
    `${update.decisions ? `Updated after ${many(update.decisions, "decision")}` : "The ranking is ready"}: ${
      count > 0 ? many(count, "new suggestion") : "another order"} `,
    Object.assign(document.createElement("kbd"), { textContent: "g" }),
  );
}
function takeUpdate() {
  const button = element("update");
  if (button && !button.hidden) leave(location.href.replace(/([?&]skip=)\d+/, "$10").replace(/([?&])near=\w+/, "$1"));
}
element("update")?.addEventListener("click", takeUpdate);

// Before leaving the page, wait a moment for the queue.
async function leave(address) {
  await queue.flush(1200);
  location.assign(address);
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a.go");
  if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey && queue.size) {
    event.preventDefault();
    leave(link.href);
    return;
  }
  if (link) return;
  // A clicked button gives up the focus: space enlarges or closes, and must not click it again.
  if (event.detail) event.target.closest("button")?.blur();
  const entry = event.target.closest(".entry");
  const button = event.target.closest("[data-answer]");
  if (button && entry) {
    entries.select(entries.list.indexOf(entry));
    entries.answer(button.dataset.answer, false);
  } else if (button) entries.answer(button.dataset.answer);
  else if (event.target.closest(".enlarge")) {
    entries.select(entries.list.indexOf(entry));
    viewer.open();
  } else if (entry?.classList.contains("tile")) entries.click(entry);
  else if (entry) entries.select(entries.list.indexOf(entry));
});
setUpNewClass(page, leave);
setUpNewPhotos(page, leave);
element("rest")?.addEventListener("click", () => entries.rest());
element("undo")?.addEventListener("click", () => entries.undo());

// Where the question is whether a label is right, "yes" and "no" are about the label.
const ANSWER_KEYS = entries.aboutLabels ? { y: "right", n: "wrong", u: -1 } : { y: 1, n: 0, u: -1 };
const turnPage = (kind) => {
  const link = document.querySelector(`a[rel=${kind}]`);
  if (link) leave(link.href);
};
const KEYS = {
  ArrowRight: () => (document.body.classList.contains("one") ? turnPage("next") : move(1)),
  ArrowLeft: () => (document.body.classList.contains("one") ? turnPage("prev") : move(-1)),
  ArrowDown: () => step(1),
  ArrowUp: () => step(-1),
  Home: () => entries.select(0),
  End: () => entries.select(entries.list.length - 1),
  z: () => entries.undo(),
  r: () => entries.rest(),
  h: () => viewer.toggleHeat(),
  g: takeUpdate,
  s: () => similarAddress(entries.current) && leave(similarAddress(entries.current)),
  "]": () => turnPage("next"),
  "[": () => turnPage("prev"),
  " ": () => viewer.toggle(),
  Enter: () => viewer.toggle(),
};

function move(by) {
  entries.select(Math.min(entries.index + by, Math.max(entries.index, entries.list.length - 1)));
}

function step(direction) {
  const index = entries.index + direction * (viewer.isOpen ? 1 : entries.columns);
  if (index >= 0 && index < entries.list.length) entries.select(index);
  else if (direction > 0 && entries.index < entries.list.length - 1) entries.select(entries.list.length - 1);
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
  if (!entries.list.length) return;
  const onControl = event.target.closest("a, button") && !event.target.closest(".entry");
  if (onControl && (event.key === " " || event.key === "Enter")) return;
  const letter = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  const key = /^[^\x00-\x7f]$/.test(letter) ? event.code.replace(/^Key/, "").toLowerCase() : letter;
  if (key in ANSWER_KEYS) {
    if (!event.repeat) entries.answer(ANSWER_KEYS[key]);
  } else if (key in KEYS) {
    if (!event.repeat || key.startsWith("Arrow")) KEYS[key]();
  } else return;
  event.preventDefault();
});

// Scores are hidden by default: they would bias the answers.
const scores = element("scores");
if (scores) {
  scores.checked = browserStorage.get("labelgap-scores") === "1";
  const shown = () => document.body.classList.toggle("with-scores", scores.checked);
  scores.addEventListener("change", () => {
    browserStorage.set("labelgap-scores", scores.checked ? "1" : "0");
    shown();
    scores.blur();
  });
  shown();
}

// Filter the list of classes by name.
element("filter")?.addEventListener("input", (event) => {
  const query = event.target.value.trim().toLowerCase();
  for (const row of document.querySelectorAll(".classes tbody tr")) {
    row.hidden = !row.querySelector("th").textContent.toLowerCase().includes(query);
  }
});

document.documentElement.dataset.ready = "1";
