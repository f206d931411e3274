// Decisions on their way to the server. Each is kept in this browser until the server has it on disk, so a lost server,
// a closed lid or a reload loses nothing; each has a name of its own, so one that is sent twice counts once.

const MOST = 200;
const PAUSES = [300, 1000, 2000, 4000];

export function name() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

const wait = (time) => new Promise((done) => setTimeout(done, time));

export class Queue {
  // `page`: store, client, stamp, number; `said(answer)` hears every answer, `trouble(kind, words)` what is wrong.
  constructor(page, said, trouble) {
    Object.assign(this, { page, said, trouble });
    this.prefix = `labelgap/${page.store}/`;
    this.waiting = new Map();
    this.sending = false;
    this.order = Date.now() * 1000;
    for (const action of this.stored()) this.waiting.set(action.request, action);
    window.addEventListener("beforeunload", (event) => {
      if (this.waiting.size && !this.keeps) event.preventDefault();
    });
  }

  stored() {
    const found = [];
    this.keeps = true;
    try {
      for (let at = 0; at < localStorage.length; at++) {
        const key = localStorage.key(at);
        if (key.startsWith(this.prefix)) found.push(JSON.parse(localStorage.getItem(key)));
      }
    } catch {
      this.keeps = false;
    }
    return found.sort((a, b) => a.order - b.order);
  }

  get size() {
    return this.waiting.size;
  }

  // What waits for each candidate: the last word on it.
  pending() {
    const last = new Map();
    for (const action of this.waiting.values()) if (action.id) last.set(action.id, action);
    return last;
  }

  add(actions) {
    for (const action of actions) {
      action.order = ++this.order;
      action.client = this.page.client;
      this.waiting.set(action.request, action);
      try {
        localStorage.setItem(this.prefix + action.request, JSON.stringify(action));
      } catch {
        this.keeps = false;
      }
    }
    this.send();
  }

  forget(requests) {
    for (const request of requests) {
      this.waiting.delete(request);
      try {
        localStorage.removeItem(this.prefix + request);
      } catch {
        this.keeps = false;
      }
    }
  }

  // Wait until all is sent, but no longer than `time`.
  async sent(time) {
    const end = Date.now() + time;
    while (this.waiting.size && Date.now() < end) await wait(25);
  }

  batch() {
    const all = [...this.waiting.values()];
    const first = all[0];
    const other = all.findIndex((action) => action.client !== first.client || action.reviewer !== first.reviewer);
    return all.slice(0, Math.min(other < 0 ? all.length : other, MOST));
  }

  async send() {
    if (this.sending) return;
    this.sending = true;
    let failed = 0;
    while (this.waiting.size) {
      if (await this.once(this.batch())) failed = 0;
      else await wait(PAUSES[Math.min(failed++, PAUSES.length - 1)]);
    }
    this.sending = false;
  }

  async once(batch) {
    const actions = batch.map(({ request, id, value, saw, undoes }) =>
      undoes ? { request, undoes } : { request, id, value, saw });
    const { client, reviewer } = batch[0];
    let response, answer;
    try {
      response = await fetch(`/api/decisions${this.page.number === "" ? "" : `?class=${this.page.number}`}`, {
        method: "POST",
        headers: { "Content-Type": "application/json", "X-Labelgap-Stamp": this.page.stamp },
        body: JSON.stringify({ store: this.page.store, client, reviewer, actions }),
        signal: AbortSignal.timeout(20000),
      });
      answer = await response.json();
    } catch {
      this.trouble("lost");
      return false;
    }
    if (answer.results) {
      this.forget(answer.results.map((result) => result.request));
      this.trouble(null);
      this.said(answer, batch);
      return true;
    }
    if (answer.problem === "stamp") await this.renew();
    else if (["store", "token"].includes(answer.problem)) this.trouble(answer.problem, answer.detail);
    else if (response.status >= 500) this.trouble("lost");
    else this.trouble("refused", answer.detail);
    return false;
  }

  // The server was started anew since this page was loaded: ask for its stamp.
  async renew() {
    try {
      const answer = await (await fetch("/api/session")).json();
      if (answer.stamp) this.page.stamp = answer.stamp;
    } catch {
      this.trouble("lost");
    }
  }
}
