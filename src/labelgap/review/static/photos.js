// New photos for the run: the path of a table or folder is sent, and the state of the command asked for until it ends.

import { post } from "./requests.js";

const INTERVAL = 1000;

// `page`: store, csrfToken, reviewer; `leave(address)` opens another page.
export function setUpNewPhotos(page, leave) {
  const input = document.getElementById("new-photos");
  if (!input) return;
  const button = document.getElementById("add-photos");
  const status = document.getElementById("new-photos-status");
  const show = (text, failed = false) => {
    status.textContent = text;
    status.hidden = !text;
    status.classList.toggle("failed", failed);
  };
  const wait = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));
  async function follow() {
    for (;;) {
      await wait(INTERVAL);
      try {
        const { running, text } = await (await fetch("/api/photos")).json();
        if (running) show(text || "Adding the photos …");
        else if (text) return show(text, true);
        else return leave("/");
      } catch {
        show("The photos are added; the page is opened again …");
      }
    }
  }
  async function add() {
    const place = input.value.trim();
    if (button.disabled) return;
    if (!place) return show("Type the path of a table or of a folder first.", true);
    button.disabled = true;
    show("Adding the photos …");
    try {
      const { answer } = await post(page, "/api/photos", { reviewer: page.reviewer, path: place });
      if (answer.detail) show(answer.detail, true);
      else await follow();
    } catch {
      show("The server does not answer. Try again in a moment.", true);
    }
    button.disabled = false;
  }
  button.addEventListener("click", add);
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") add();
  });
  if (status.dataset.running) {
    button.disabled = true;
    follow().finally(() => (button.disabled = false));
  }
}
