// The candidates on the page: what is said of each, moving between them, taking things back.

import { tab } from "./storage.js";
import { name } from "./queue.js";

const WORDS = { 1: "yes", 0: "no", "-1": "can’t tell", "": "not decided" };
const REMEMBERED = 5000;

export class Entries {
  // `page`: reviewer, store; `queue` takes decisions; `told(words)` shows a message.
  constructor(page, queue, told) {
    Object.assign(this, { page, queue, told });
    this.list = [...document.querySelectorAll(".entry")];
    this.by = new Map(this.list.map((entry) => [entry.dataset.id, entry]));
    this.at = 0;
    this.moved = () => {};
    this.memory = `labelgap-history/${page.store}`;
    this.history = JSON.parse(tab.get(this.memory) ?? "[]");
    for (const [id, action] of queue.pending()) if (this.by.has(id)) this.paint(this.by.get(id), String(action.value));
    this.list.forEach((entry) => this.describe(entry));
    const open = this.list.findIndex((entry) => entry.dataset.value === "");
    this.move(Math.max(open, 0), false);
    this.count();
  }

  get current() {
    return this.list[this.at];
  }

  // The columns of the grid, as they are laid out now.
  get columns() {
    if (!this.list.length) return 1;
    const top = this.list[0].offsetTop;
    const next = this.list.findIndex((entry) => entry.offsetTop > top + 4);
    return next < 0 ? this.list.length : next;
  }

  move(to, focus = true) {
    if (!this.list.length) return;
    this.current?.setAttribute("tabindex", "-1");
    this.current?.classList.remove("current");
    this.at = Math.min(Math.max(to, 0), this.list.length - 1);
    this.current.setAttribute("tabindex", "0");
    this.current.classList.add("current");
    if (focus) {
      this.current.focus({ preventScroll: true });
      this.current.scrollIntoView({ block: "nearest" });
    }
    this.moved(this.current);
  }

  paint(entry, value, version, who) {
    entry.dataset.value = value;
    if (version !== undefined) entry.dataset.version = version;
    entry.dataset.who = who ?? (value === "" ? "" : this.page.reviewer);
    entry.classList.toggle("others", value !== "" && entry.dataset.who !== this.page.reviewer);
    this.describe(entry);
  }

  describe(entry) {
    const { name, className, value, who } = entry.dataset;
    entry.classList.toggle("others", value !== "" && who !== this.page.reviewer);
    entry.setAttribute("aria-label", `${className} in ${name}: ${WORDS[value]}${who ? `, ${who}` : ""}`);
  }

  count() {
    const left = this.list.filter((entry) => entry.dataset.value === "").length;
    const shown = document.getElementById("count");
    if (shown) shown.textContent = left ? left.toLocaleString("en") : "";
    const rest = document.getElementById("rest");
    if (rest) rest.disabled = !left;
    const undo = document.getElementById("undo");
    if (undo) undo.disabled = !this.history.length;
  }

  // Say something of several candidates; taken back as one.
  decide(pairs) {
    const made = pairs.map(([entry, value]) => ({
      request: name(),
      id: entry.dataset.id,
      value: Number(value),
      saw: Number(entry.dataset.version),
      reviewer: this.page.reviewer,
    }));
    if (!made.length) return;
    this.remember(made.map(({ request, id }, at) => ({ request, id, before: pairs[at][0].dataset.value,
      who: pairs[at][0].dataset.who })));
    for (const [entry, value] of pairs) {
      entry.classList.remove("conflict");
      this.paint(entry, String(value));
    }
    this.queue.add(made);
    this.count();
  }

  say(value, advance = true) {
    const entry = this.current;
    if (!entry) return;
    if (entry.dataset.value !== String(value) || entry.classList.contains("conflict")) this.decide([[entry, value]]);
    if (advance) this.move(this.at + 1);
  }

  // A click on a picture: it shows the class; once more takes that back.
  click(entry) {
    this.move(this.list.indexOf(entry));
    if (entry.dataset.value !== "1") return this.decide([[entry, 1]]);
    const at = this.history.findLastIndex((done) => done.length === 1 && done[0].id === entry.dataset.id);
    if (at >= 0) this.takeBack(this.history.splice(at, 1)[0]);
    else this.decide([[entry, 0]]);
  }

  rest() {
    const left = this.list.filter((entry) => entry.dataset.value === "");
    this.decide(left.map((entry) => [entry, entry.dataset.observed ?? 0]));
    if (left.length) this.told(`${left.length.toLocaleString("en")} answered; z takes it back`);
  }

  undo() {
    const last = this.history.pop();
    if (last) this.takeBack(last);
  }

  takeBack(done) {
    this.keep();
    this.queue.add(done.map(({ request, id }) => ({ request: name(), undoes: request, of: id,
      reviewer: this.page.reviewer })));
    const here = done.filter(({ id }) => this.by.has(id));
    for (const { id, before, who } of here) this.paint(this.by.get(id), before, undefined, who);
    if (here.length) this.move(this.list.indexOf(this.by.get(here[0].id)));
    const away = done.length - here.length;
    this.told(done.length === 1 && !away ? "taken back" : `${done.length.toLocaleString("en")} taken back${away
      ? ", on another page" : ""}`);
    this.count();
  }

  remember(done) {
    this.history.push(done);
    let count = this.history.reduce((sum, each) => sum + each.length, 0);
    while (count > REMEMBERED && this.history.length > 1) count -= this.history.shift().length;
    this.keep();
  }

  keep() {
    tab.set(this.memory, JSON.stringify(this.history));
  }

  // What the server says stands for a candidate, unless something newer waits here.
  stands({ id, value, version, who }, waiting) {
    const entry = this.by.get(id);
    if (!entry || waiting.has(id)) return;
    this.paint(entry, value, version, who);
  }

  answered(answer, batch) {
    const waiting = this.queue.pending();
    for (const action of this.queue.waiting.values()) if (action.of) waiting.set(action.of, action);
    const gone = answer.results.filter((result) => result.status === "gone").length;
    for (const result of answer.results) {
      if (!result.id) continue;
      this.stands(result, waiting);
      if (result.status === "conflict") this.clash(result, batch.find(({ request }) => request === result.request));
    }
    if (gone) this.told(`${gone} answered about candidates that are no longer listed: load the page again`);
    this.count();
  }

  clash(result, action) {
    const entry = this.by.get(result.id);
    entry?.classList.add("conflict");
    const what = entry ? `${entry.dataset.className} in ${entry.dataset.name}` : "a candidate on another page";
    this.told(`${result.who} said ${WORDS[result.value]} to ${what} before you, and that stands. Your ${
      WORDS[action.value]} is kept beside it: say it again if you mean it.`, true);
  }
}
