// The review page: keys and clicks become decisions, the queue carries them, and every few seconds the page hears what
// other people did.

import { Entries } from "./entries.js";
import { Large } from "./viewer.js";
import { browser, tab } from "./storage.js";
import { Queue, name } from "./queue.js";

const EVERY = 3000;
const SLOWLY = 15000;
const element = (id) => document.getElementById(id);

const page = {
  ...document.body.dataset,
  number: document.body.dataset.class,
  client: tab.get("labelgap-client") ?? name(),
};
tab.set("labelgap-client", page.client);

// Who is reviewing: as told when the server was started, until somebody types another name here.
const called = `labelgap-reviewer/${page.store}/${page.reviewer}`;
page.reviewer = browser.get(called) ?? page.reviewer;
element("reviewer").value = page.reviewer;
element("reviewer").addEventListener("change", (event) => {
  const typed = event.target.value.replace(/(?![\u200c\u200d\s])\p{C}/gu, "").trim().replace(/\s+/g, " ");
  if (typed) {
    page.reviewer = typed;
    browser.set(called, typed);
    entries.list.forEach((entry) => entries.describe(entry));
  }
  event.target.value = page.reviewer;
});
element("reviewer").addEventListener("keydown", (event) => {
  if (event.key === "Enter" || event.key === "Escape") event.target.blur();
});

let hiding;
function told(words, long = false) {
  const toast = element("toast");
  toast.textContent = words;
  toast.hidden = false;
  toast.classList.toggle("long", long);
  clearTimeout(hiding);
  hiding = setTimeout(() => (toast.hidden = true), long ? 12000 : 2500);
}

let wrong = null;
function trouble(kind, words = "") {
  wrong = kind;
  const waiting = queue.size ? `${queue.size.toLocaleString("en")} ${queue.size === 1 ? "answer waits" : "answers wait"} ` +
    "in this browser and will be sent" : "Nothing is lost";
  const said = {
    lost: `The server does not answer. ${waiting} as soon as it is back; you can go on.`,
    token: `The server was started anew. ${waiting} once you open the address that it printed.`,
    store: `Another review is served at this address now. ${waiting} when ${page.name} is served here again.`,
    refused: `The server refuses what this page sends (${words}). Please load the page again.`,
  }[kind];
  element("banner").hidden = !said;
  if (said) element("banner").textContent = said;
}

function showStatus({ figures, panel, left }) {
  if (figures !== undefined) element("figures").innerHTML = figures;
  if (panel !== undefined) element("panel").innerHTML = panel;
  if (left !== undefined && left !== null) end = Date.now() + 1000 * left;
}

const queue = new Queue(page, (answer, batch) => {
  showStatus(answer);
  entries.answered(answer, batch);
}, trouble);
const entries = new Entries(page, queue, told);
const large = new Large(entries);

// The clock of a budget: it says when time is up, and stops nobody.
let end = page.left === "" ? null : Date.now() + 1000 * Number(page.left);
function tick() {
  if (end === null) return;
  const clock = element("clock");
  const seconds = Math.round((end - Date.now()) / 1000);
  const shown = `${Math.floor(Math.abs(seconds) / 60)}:${String(Math.abs(seconds) % 60).padStart(2, "0")}`;
  clock.hidden = false;
  clock.classList.toggle("up", seconds <= 0);
  clock.textContent = seconds > 0 ? `${shown} left` : "time is up";
  const key = `labelgap-up/${page.store}/${Math.round(end / 60000)}`;
  if (seconds <= 0 && !tab.get(key)) {
    tab.set(key, "1");
    told("Time is up. Everything is kept: stop here, or go on.", true);
  }
}
if (end !== null) {
  tick();
  setInterval(tick, 1000);
}

// What other people did, and whether the server is there.
async function poll() {
  const asked = new URLSearchParams({ since: page.last, reviewer: page.reviewer });
  if (page.number !== "") asked.set("class", page.number);
  try {
    const response = await fetch(`/api/changes?${asked}`, { signal: AbortSignal.timeout(10000) });
    const answer = await response.json();
    if (!response.ok) trouble(answer.problem === "token" ? "token" : "lost");
    else if (answer.reload) location.reload();
    else {
      if (wrong === "lost" || wrong === "token") trouble(null);
      page.last = answer.last;
      const waiting = queue.pending();
      for (const action of queue.waiting.values()) if (action.of) waiting.set(action.of, action);
      for (const change of answer.changes) entries.stands(change, waiting);
      entries.count();
      showStatus(answer);
      if (queue.size) queue.send();
    }
  } catch {
    trouble("lost");
  }
  setTimeout(poll, document.hidden ? SLOWLY : EVERY);
}
setTimeout(poll, EVERY);
if (queue.size) queue.send();

// Leaving the page: what is on its way arrives first, as long as that takes no time.
async function go(address) {
  await queue.sent(1200);
  location.assign(address);
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a.go");
  if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey && queue.size) {
    event.preventDefault();
    go(link.href);
    return;
  }
  // A button that was clicked lets go of the keys: space is to enlarge or to close, not to click it again.
  if (event.detail) event.target.closest("button")?.blur();
  const entry = event.target.closest(".entry");
  const answer = event.target.closest("[data-say]");
  if (answer && entry) {
    entries.move(entries.list.indexOf(entry));
    entries.say(answer.dataset.say, false);
  } else if (answer) entries.say(answer.dataset.say);
  else if (event.target.closest(".enlarge")) {
    entries.move(entries.list.indexOf(entry));
    large.enlarge();
  } else if (entry?.classList.contains("tile")) entries.click(entry);
  else if (entry) entries.move(entries.list.indexOf(entry));
});
element("rest")?.addEventListener("click", () => entries.rest());
element("undo")?.addEventListener("click", () => entries.undo());

const SAYS = { y: 1, n: 0, u: -1 };
const turn = (kind) => {
  const link = document.querySelector(`a[rel=${kind}]`);
  if (link) go(link.href);
};
const KEYS = {
  ArrowRight: () => (document.body.classList.contains("one") ? turn("next") : entries.move(entries.at + 1)),
  ArrowLeft: () => (document.body.classList.contains("one") ? turn("prev") : entries.move(entries.at - 1)),
  ArrowDown: () => step(1),
  ArrowUp: () => step(-1),
  Home: () => entries.move(0),
  End: () => entries.move(entries.list.length - 1),
  z: () => entries.undo(),
  r: () => entries.rest(),
  h: () => large.toggle(),
  "]": () => turn("next"),
  "[": () => turn("prev"),
  " ": () => (large.open ? large.close() : large.enlarge()),
  Enter: () => (large.open ? large.close() : large.enlarge()),
};

function step(direction) {
  const to = entries.at + direction * (large.open ? 1 : entries.columns);
  if (to >= 0 && to < entries.list.length) entries.move(to);
  else if (direction > 0 && entries.at < entries.list.length - 1) entries.move(entries.list.length - 1);
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
  if (!entries.list.length) return;
  const onControl = event.target.closest("a, button") && !event.target.closest(".entry");
  if (onControl && (event.key === " " || event.key === "Enter")) return;
  const letter = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  const latin = /^[^\x00-\x7f]$/.test(letter) ? event.code.replace(/^Key/, "").toLowerCase() : letter;
  if (latin in SAYS) {
    if (!event.repeat) entries.say(SAYS[latin]);
  } else if (latin in KEYS) {
    if (!event.repeat || latin.startsWith("Arrow")) KEYS[latin]();
  } else return;
  event.preventDefault();
});

// Scores stay out of sight unless asked for: they would answer for you.
const scores = element("scores");
if (scores) {
  scores.checked = browser.get("labelgap-scores") === "1";
  const shown = () => document.body.classList.toggle("with-scores", scores.checked);
  scores.addEventListener("change", () => {
    browser.set("labelgap-scores", scores.checked ? "1" : "0");
    shown();
    scores.blur();
  });
  shown();
}

// A class by its name, in a long list.
element("filter")?.addEventListener("input", (event) => {
  const wanted = event.target.value.trim().toLowerCase();
  for (const row of document.querySelectorAll(".classes tbody tr")) {
    row.hidden = !row.querySelector("th").textContent.toLowerCase().includes(wanted);
  }
});

document.documentElement.dataset.ready = "1";
