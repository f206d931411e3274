// What to ask: the chosen aim is remembered in this browser, and a plan of the next minutes is fetched for its person.

import { browserStorage } from "./storage.js";

const KEY = "labelgap-aim";
const AIMS = ["missing", "classifier", "random", "machine"];

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-aim]");
  if (link) browserStorage.set(KEY, link.dataset.aim);
});

if (document.body.classList.contains("overview")) {
  const aim = browserStorage.get(KEY);
  const offered = document.querySelector(".aim-cards") !== null;
  if (offered && !location.search && AIMS.includes(aim) && aim !== document.body.dataset.aim) location.replace(`/?aim=${aim}`);
  const plan = document.getElementById("plan");
  if (plan) showPlan(plan);
}

async function showPlan(plan) {
  const query = new URLSearchParams({ reviewer: document.getElementById("reviewer").value });
  try {
    const response = await fetch(`/plan?${query}`);
    if (response.ok) plan.innerHTML = await response.text();
  } catch {
    // the list of classes is there without it
  }
}
