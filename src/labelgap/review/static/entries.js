// The candidates on the page: the decision on each, the selected one, and undo.

import { tabStorage } from "./storage.js";
import { randomId } from "./queue.js";

const ANSWERS = { 1: "yes", 0: "no", "-1": "can’t tell", "": "not decided" };
const MAX_HISTORY = 5000;
const PAGE_PLACES = 10000; // as in events.py
const format = (number) => number.toLocaleString("en");

export class Entries {
  // `page`: reviewer, store; `queue` sends decisions; `notify(text)` shows a message.
  constructor(page, queue, notify) {
    Object.assign(this, { page, queue, notify });
    this.list = [...document.querySelectorAll(".entry")];
    this.byId = new Map(this.list.map((entry) => [entry.dataset.id, entry]));
    this.index = 0;
    this.aboutLabels = document.body.classList.contains("about-labels");
    this.onSelect = () => {};
    this.historyKey = `labelgap-history/${page.store}`;
    this.history = JSON.parse(tabStorage.get(this.historyKey) ?? "[]");
    for (const [id, action] of queue.pending()) if (this.byId.has(id)) this.show(this.byId.get(id), String(action.value));
    this.list.forEach((entry) => this.describe(entry));
    this.select(Math.max(this.list.findIndex((entry) => entry.dataset.value === ""), 0), false);
    this.count();
  }

  // None at the end, i.e. after the last entry.
  get current() {
    return this.list[this.index];
  }

  // Where to go from the end.
  get wayOn() {
    return document.querySelector("a[rel=next]");
  }

  // The number of columns of the grid in its present layout.
  get columns() {
    if (!this.list.length) return 1;
    const top = this.list[0].offsetTop;
    const next = this.list.findIndex((entry) => entry.offsetTop > top + 4);
    return next < 0 ? this.list.length : next;
  }

  select(index, focus = true) {
    if (!this.list.length) return;
    this.current?.setAttribute("tabindex", "-1");
    this.current?.classList.remove("current");
    this.index = Math.min(Math.max(index, 0), this.list.length);
    this.current?.setAttribute("tabindex", "0");
    this.current?.classList.add("current");
    if (focus) {
      (this.current ?? this.wayOn)?.focus({ preventScroll: true });
      this.current?.scrollIntoView({ block: "nearest" });
    }
    this.onSelect(this.current);
  }

  show(entry, value, version, who) {
    entry.dataset.value = value;
    if (version !== undefined) entry.dataset.version = version;
    entry.dataset.who = who ?? (value === "" ? "" : this.page.reviewer);
    this.describe(entry);
  }

  describe(entry) {
    const { name, className, value, who } = entry.dataset;
    entry.classList.toggle("others", value !== "" && who !== this.page.reviewer);
    entry.setAttribute("aria-label", `${className} in ${name}: ${ANSWERS[value]}${who ? `, ${who}` : ""}`);
  }

  count() {
    const undecided = this.undecided();
    const count = document.getElementById("count");
    const kept = document.getElementById("kept"); // where some entries have a label, which "all the rest" confirms
    const labeled = kept ? undecided.filter((entry) => entry.dataset.observed).length : 0;
    if (count) count.textContent = undecided.length ? format(undecided.length - labeled) : "";
    if (kept) kept.textContent = labeled ? `· ${format(labeled)} as labeled` : "";
    const rest = document.getElementById("rest");
    if (rest) rest.disabled = !undecided.length;
    const more = document.getElementById("more"); // leaves out what is left open here
    if (more) more.href = more.href.replace(/\d+$/, Number(more.dataset.skip) + undecided.length);
    const undo = document.getElementById("undo");
    if (undo) undo.disabled = !this.history.length;
  }

  // Decide on several candidates; one undo withdraws them all.
  decide(pairs) {
    const actions = pairs.map(([entry, value]) => ({
      requestId: randomId(),
      id: entry.dataset.id,
      value: Number(value),
      baseVersion: Number(entry.dataset.version),
      asked: entry.dataset.asked,
      ranking: Number(this.page.ranking),
      place: this.page.shownAt * PAGE_PLACES + this.list.indexOf(entry) + 1,
      reviewer: this.page.reviewer,
    }));
    if (!actions.length) return;
    this.remember(actions.map(({ requestId, id }, at) => ({ requestId, id, before: pairs[at][0].dataset.value,
      who: pairs[at][0].dataset.who })));
    for (const [entry, value] of pairs) {
      entry.classList.remove("conflict");
      this.show(entry, String(value));
    }
    this.queue.add(actions);
    this.count();
  }

  // What an answer says about the class: "right" and "wrong" are about the label that the image has.
  value(entry, answer) {
    const { observed } = entry.dataset;
    return String(answer === "right" ? observed : answer === "wrong" ? 1 - observed : answer);
  }

  answer(answer, advance = true) {
    const entry = this.current;
    if (!entry) return this.notify(`Nothing changed: the last one here is answered. Enter: ${this.wayOn?.textContent}`);
    const value = this.value(entry, answer);
    const wasOpen = this.isOpen(entry);
    if (entry.dataset.value !== value || entry.classList.contains("conflict")) this.decide([[entry, value]]);
    if (advance) this.advance(wasOpen);
  }

  // Go to the next entry that is open. After the last one none is selected: one key too many changes no answer.
  advance(wasOpen) {
    const next = this.list.findIndex((entry, at) => at > this.index && this.isOpen(entry));
    this.select(next >= 0 ? next : wasOpen ? this.list.length : this.index + 1);
  }

  // A click on an image: it shows the class, or its label is wrong; another click withdraws that.
  click(entry) {
    this.select(this.list.indexOf(entry));
    const value = this.value(entry, this.aboutLabels ? "wrong" : 1);
    if (entry.dataset.value !== value) return this.decide([[entry, value]]);
    const at = this.history.findLastIndex((step) => step.length === 1 && step[0].id === entry.dataset.id);
    if (at >= 0) this.withdraw(this.history.splice(at, 1)[0]);
    else this.decide([[entry, 1 - value]]);
  }

  // Whether it is to be answered here: nobody has answered it, and nobody else looks at it.
  isOpen(entry) {
    return entry.dataset.value === "" && !entry.classList.contains("held");
  }

  // The candidates that "all the rest" is about.
  undecided() {
    return this.list.filter((entry) => this.isOpen(entry));
  }

  rest() {
    if (!document.getElementById("rest")) return;
    const undecided = this.undecided();
    this.decide(undecided.map((entry) => [entry, entry.dataset.observed ?? 0]));
    if (!undecided.length) return;
    this.select(this.list.length);
    this.notify(`${format(undecided.length)} answered; z undoes it`);
  }

  undo() {
    const last = this.history.pop();
    if (last) this.withdraw(last);
  }

  withdraw(step) {
    this.saveHistory();
    this.queue.add(step.map(({ requestId, id }) => ({ requestId: randomId(), undoes: requestId, of: id,
      reviewer: this.page.reviewer })));
    const here = step.filter(({ id }) => this.byId.has(id));
    for (const { id, before, who } of here) this.show(this.byId.get(id), before, undefined, who);
    if (here.length) this.select(this.list.indexOf(this.byId.get(here[0].id)));
    const elsewhere = here.length < step.length ? ", on another page" : "";
    this.notify(step.length === 1 && !elsewhere ? "undone" : `${format(step.length)} undone${elsewhere}`);
    this.count();
  }

  remember(step) {
    this.history.push(step);
    let count = this.history.reduce((sum, each) => sum + each.length, 0);
    while (count > MAX_HISTORY && this.history.length > 1) count -= this.history.shift().length;
    this.saveHistory();
  }

  saveHistory() {
    tabStorage.set(this.historyKey, JSON.stringify(this.history));
  }

  // Show the decisions that the server has in force, except where a newer one waits here. A second opinion is given
  // without knowing the first, which is the one in force.
  update(states) {
    const waiting = this.queue.pendingIds();
    for (const { id, value, version, who } of states) {
      const entry = this.byId.get(id);
      if (entry && !waiting.has(id) && entry.dataset.asked !== "second") this.show(entry, value, version, who);
    }
    this.count();
  }

  onAnswer(answer, batch) {
    // A disagreement whose settling is undone is open again, whatever answer is in force.
    const undone = new Set(batch.filter(({ undoes }) => undoes).map(({ requestId }) => requestId));
    const isOpen = ({ request_id: id }) => this.page.settling && undone.has(id);
    const results = answer.results.map((result) => (isOpen(result) ? { ...result, value: "", who: "" } : result));
    this.update(results.filter((result) => result.id));
    for (const result of answer.results) {
      if (result.status !== "conflict") continue;
      this.showConflict(result, batch.find(({ requestId }) => requestId === result.request_id));
    }
    const gone = answer.results.filter((result) => result.status === "gone").length;
    if (gone) this.notify(`${gone} of the candidates are no longer listed: reload the page`);
  }

  showConflict(result, action) {
    const entry = this.byId.get(result.id);
    entry?.classList.add("conflict");
    const label = entry ? `${entry.dataset.className} in ${entry.dataset.name}` : "a candidate on another page";
    this.notify(`${result.who} answered ${ANSWERS[result.value]} to ${label} before you, and that is in force. Your ${
      ANSWERS[action.value]} is stored beside it: answer again to replace theirs.`, true);
  }
}
