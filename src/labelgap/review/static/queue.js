// The queue of decisions for the server. Each stays in this browser until the server has it on disk, so a lost server or
// a reload loses nothing. Each has a unique request id, so one that is sent twice is stored once.

import { post } from "./requests.js";

const MAX_BATCH = 200;
const RETRY_DELAYS = [300, 1000, 2000, 4000];

export function randomId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

const wait = (time) => new Promise((done) => setTimeout(done, time));

export class Queue {
  // `page`: store, client, csrfToken, number; `onAnswer(answer, batch)`, `onError(kind, detail)`; kind null: all is well.
  constructor(page, onAnswer, onError) {
    Object.assign(this, { page, onAnswer, onError });
    this.prefix = `labelgap/${page.store}/`;
    this.waiting = new Map();
    this.sending = false;
    this.answers = 0; // how often the server has answered
    this.order = Date.now() * 1000;
    for (const action of this.stored()) this.waiting.set(action.requestId, action);
    window.addEventListener("beforeunload", (event) => {
      if (this.waiting.size && !this.persistent) event.preventDefault();
    });
  }

  stored() {
    const found = [];
    this.persistent = true;
    try {
      for (let at = 0; at < localStorage.length; at++) {
        const key = localStorage.key(at);
        if (key.startsWith(this.prefix)) found.push(JSON.parse(localStorage.getItem(key)));
      }
    } catch {
      this.persistent = false;
    }
    return found.sort((a, b) => a.order - b.order);
  }

  get size() {
    return this.waiting.size;
  }

  // The last waiting decision on each candidate.
  pending() {
    const last = new Map();
    for (const action of this.waiting.values()) if (action.id) last.set(action.id, action);
    return last;
  }

  // The candidates that a waiting decision or undo is about.
  pendingIds() {
    return new Set([...this.waiting.values()].map((action) => action.id ?? action.of));
  }

  add(actions) {
    for (const action of actions) {
      action.order = ++this.order;
      action.client = this.page.client;
      this.waiting.set(action.requestId, action);
      try {
        localStorage.setItem(this.prefix + action.requestId, JSON.stringify(action));
      } catch {
        this.persistent = false;
      }
    }
    this.send();
  }

  remove(requestIds) {
    for (const requestId of requestIds) {
      this.waiting.delete(requestId);
      try {
        localStorage.removeItem(this.prefix + requestId);
      } catch {
        this.persistent = false;
      }
    }
  }

  // Wait until everything is sent, at most `time` milliseconds.
  async flush(time) {
    const end = Date.now() + time;
    while (this.waiting.size && Date.now() < end) await wait(25);
  }

  batch() {
    const all = [...this.waiting.values()];
    const first = all[0];
    const other = all.findIndex((action) => action.client !== first.client || action.reviewer !== first.reviewer);
    return all.slice(0, Math.min(other < 0 ? all.length : other, MAX_BATCH));
  }

  async send() {
    if (this.sending) return;
    this.sending = true;
    let failed = 0;
    while (this.waiting.size) {
      if (await this.sendBatch(this.batch())) failed = 0;
      else await wait(RETRY_DELAYS[Math.min(failed++, RETRY_DELAYS.length - 1)]);
    }
    this.sending = false;
  }

  async sendBatch(batch) {
    const actions = batch.map(({ requestId, id, value, baseVersion, asked = null, ranking = 0, place = 0, undoes }) => undoes
      ? { request_id: requestId, undoes }
      : { request_id: requestId, id, value, base_version: baseVersion, asked, ranking, place });
    const { client, reviewer } = batch[0];
    let response, answer;
    try {
      const path = `/api/decisions${this.page.number === "" ? "" : `?class=${this.page.number}`}`;
      ({ response, answer } = await post(this.page, path, { client, reviewer, actions }, { signal: AbortSignal.timeout(20000) }));
    } catch {
      this.onError("lost");
      return false;
    }
    if (answer.results) {
      this.answers++;
      this.remove(answer.results.map((result) => result.request_id));
      this.onError(null);
      this.onAnswer(answer, batch);
      return true;
    }
    if (["store", "token", "unsaved"].includes(answer.problem)) this.onError(answer.problem, answer.detail);
    else if (response.status >= 500) this.onError("lost");
    else this.onError("refused", answer.detail);
    return false;
  }
}
