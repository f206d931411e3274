// Other people at the same review: the lease of what this page shows, and who else is at work here.

import { post } from "./requests.js";

export class Team {
  // `page`: store, lease, number, reviewer, csrfToken; `entries`: the candidates on the page.
  constructor(page, entries) {
    Object.assign(this, { page, entries });
    this.label = document.getElementById("others");
    window.addEventListener("pagehide", () => this.post([]));
  }

  // The answer of a poll: whether the server knows the lease, and the names of others at this class.
  async update({ lease, people }) {
    if (this.label && people) this.showPeople(people);
    if (lease !== false) return;
    const answer = await this.post(this.entries.list.map((entry) => entry.dataset.id));
    const refused = new Set(answer?.refused ?? []);
    for (const entry of this.entries.list) {
      entry.classList.toggle("held", refused.has(entry.dataset.id) && entry.dataset.value === "");
    }
    this.entries.count();
  }

  showPeople(people) {
    const shown = people.slice(0, 3).join(", ") + (people.length > 3 ? ` and ${people.length - 3} more` : "");
    this.label.textContent = people.length ? `also here: ${shown}` : "";
    this.label.title = people.length ? "each of you is asked about other images" : "";
  }

  // Lease candidates, or give the lease back with none.
  async post(ids) {
    if (!this.page.lease) return null;
    try {
      const { number, lease, reviewer } = this.page;
      const { response, answer } = await post(this.page, "/api/leases",
        { lease, reviewer, ids, class_number: number === "" ? null : Number(number) }, { keepalive: true });
      return response.ok ? answer : null;
    } catch {
      return null;
    }
  }
}
