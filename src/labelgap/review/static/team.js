// Other people at the same review: the lease of what this page shows, and who else is at work here.

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
      const response = await fetch("/api/leases", {
        method: "POST",
        keepalive: true,
        headers: { "Content-Type": "application/json", "X-CSRF-Token": this.page.csrfToken },
        body: JSON.stringify({ store: this.page.store, lease: this.page.lease, reviewer: this.page.reviewer, ids,
          class_number: this.page.number === "" ? null : Number(this.page.number) }),
      });
      return response.ok ? await response.json() : null;
    } catch {
      return null;
    }
  }
}
