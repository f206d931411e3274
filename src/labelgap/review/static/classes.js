// A class that nobody labeled: adding it, and images that look alike.

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
      const answer = await send({ store: page.store, reviewer: page.reviewer, name });
      if (answer.number === undefined) show(answer.detail ?? "The server refuses this name.");
      else leave(`/class/${answer.number}`);
    } catch {
      show("The server does not answer. Try again in a moment.");
    }
    button.disabled = false;
  }
  async function send(message, again = true) {
    const response = await fetch("/api/classes", {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-CSRF-Token": page.csrfToken },
      body: JSON.stringify(message),
      signal: AbortSignal.timeout(60000),
    });
    const answer = await response.json();
    if (answer.problem !== "csrf" || !again) return answer;
    page.csrfToken = (await (await fetch("/api/session")).json()).csrf_token; // the server has restarted
    return send(message, false);
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
