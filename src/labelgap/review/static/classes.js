// A class that nobody labeled: adding it, and images that look alike.

import { post } from "./requests.js";

// `page`: store, csrfToken, reviewer; `leave(address)` opens another page.
export function setUpNewClass(page, leave) {
  const input = document.getElementById("new-class");
  if (!input) return;
  const button = document.getElementById("add-class");
  const problem = document.getElementById("new-class-problem");
  const show = (text) => {
    problem.textContent = text;
    problem.hidden = !text;
  };
  async function add() {
    const name = input.value.trim();
    if (button.disabled) return;
    if (!name) return show("Type the name of a class first.");
    button.disabled = true;
    show("");
    try {
      const message = { reviewer: page.reviewer, name };
      const { answer } = await post(page, "/api/classes", message, { signal: AbortSignal.timeout(60000) });
      if (answer.number === undefined) show(answer.detail ?? "The server refuses this name.");
      else leave(`/class/${answer.number}`);
    } catch {
      show("The server does not answer. Try again in a moment.");
    }
    button.disabled = false;
  }
  button.addEventListener("click", add);
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") add();
  });
}

// The address that sorts the candidates of the class by similarity to the image of an entry; empty where there is none.
export function similarAddress(entry) {
  return entry?.querySelector("a.similar")?.href ?? "";
}
