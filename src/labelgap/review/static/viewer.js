// The picture large, with what is known of it and where the model looks.

import { tab } from "./storage.js";

const HEAT = "labelgap-heat";

export class Large {
  constructor(entries) {
    this.entries = entries;
    this.dialog = document.getElementById("large");
    this.picture = document.getElementById("picture");
    this.heat = document.getElementById("heat");
    this.switch = document.getElementById("heat-switch");
    this.hot = tab.get(HEAT) === "1" && Boolean(this.switch);
    this.switch?.addEventListener("click", () => this.toggle());
    document.getElementById("close")?.addEventListener("click", () => this.close());
    this.dialog?.addEventListener("click", (event) => {
      if (event.target === this.dialog) this.close();
    });
    this.dialog?.addEventListener("close", () => this.entries.move(this.entries.at));
    entries.moved = (entry) => this.show(entry);
    this.show(entries.current);
  }

  get open() {
    return Boolean(this.dialog?.open);
  }

  enlarge() {
    if (!this.dialog || !this.entries.current) return;
    this.dialog.showModal();
    this.show(this.entries.current);
  }

  close() {
    this.dialog?.close();
  }

  toggle() {
    if (!this.switch) return;
    this.hot = !this.hot;
    tab.set(HEAT, this.hot ? "1" : "0");
    this.warm(this.entries.current);
  }

  show(entry) {
    if (!entry || (this.dialog && !this.dialog.open)) return;
    if (this.dialog) {
      const address = `/picture/${entry.dataset.image}`;
      if (!this.picture.src.endsWith(address)) this.picture.src = address;
      this.tell(entry);
      for (const step of [1, 2]) {
        const next = this.entries.list[this.entries.at + step];
        if (next) new Image().src = `/picture/${next.dataset.image}`;
      }
    }
    this.warm(entry);
  }

  warm(entry) {
    if (!this.heat) return;
    this.switch?.setAttribute("aria-pressed", String(this.hot));
    this.heat.hidden = !this.hot || !entry;
    if (!this.heat.hidden) this.heat.src = `/heat/${entry.dataset.id}`;
  }

  async tell(entry) {
    const place = document.getElementById("detail");
    this.dialog.dataset.value = entry.dataset.value;
    try {
      const response = await fetch(`/detail/${entry.dataset.id}`);
      const words = await response.text();
      if (response.ok && this.entries.current === entry) place.innerHTML = words;
    } catch {
      place.textContent = entry.dataset.name;
    }
  }
}
