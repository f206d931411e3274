// The enlarged image, with its known labels and the model's heat map.

import { tabStorage } from "./storage.js";

const HEAT_KEY = "labelgap-heat";

export class Viewer {
  constructor(entries) {
    this.entries = entries;
    this.dialog = document.getElementById("viewer");
    this.photo = document.getElementById("photo");
    this.heat = document.getElementById("heat");
    this.heatSwitch = document.getElementById("heat-switch");
    this.heatOn = tabStorage.get(HEAT_KEY) === "1" && Boolean(this.heatSwitch);
    this.heatSwitch?.addEventListener("click", () => this.toggleHeat());
    document.getElementById("close")?.addEventListener("click", () => this.close());
    this.dialog?.addEventListener("click", (event) => {
      if (event.target === this.dialog) this.close();
    });
    this.dialog?.addEventListener("close", () => this.entries.select(this.entries.index));
    entries.onSelect = (entry) => (entry ? this.show(entry) : this.close());
    this.show(entries.current);
  }

  get isOpen() {
    return Boolean(this.dialog?.open);
  }

  open() {
    if (!this.dialog || !this.entries.current) return;
    this.dialog.showModal();
    this.show(this.entries.current);
  }

  close() {
    this.dialog?.close();
  }

  toggle() {
    if (this.isOpen) this.close();
    else this.open();
  }

  toggleHeat() {
    if (!this.heatSwitch) return;
    this.heatOn = !this.heatOn;
    tabStorage.set(HEAT_KEY, this.heatOn ? "1" : "0");
    this.showHeat(this.entries.current);
  }

  show(entry) {
    if (!entry || (this.dialog && !this.dialog.open)) return;
    if (this.dialog) {
      const address = `/large/${entry.dataset.image}`;
      if (!this.photo.src.endsWith(address)) this.photo.src = address;
      this.showDetail(entry);
      for (const step of [1, 2]) {
        const next = this.entries.list[this.entries.index + step];
        if (next) new Image().src = `/large/${next.dataset.image}`;
      }
    }
    this.showHeat(entry);
  }

  showHeat(entry) {
    if (!this.heat) return;
    this.heatSwitch?.setAttribute("aria-pressed", String(this.heatOn));
    this.heat.hidden = !this.heatOn || !entry;
    if (!this.heat.hidden) this.heat.src = `/heat/${entry.dataset.id}`;
  }

  async showDetail(entry) {
    const detail = document.getElementById("detail");
    this.dialog.dataset.value = entry.dataset.value;
    this.dialog.dataset.observed = entry.dataset.observed ?? "";
    try {
      const response = await fetch(`/detail/${entry.dataset.id}`);
      const html = await response.text();
      if (response.ok && this.entries.current === entry) detail.innerHTML = html;
    } catch {
      detail.textContent = entry.dataset.name;
    }
  }
}
