// Messages to the server. Its CSRF token is another one after a restart; the message is then sent again with that.

// `page`: store, csrfToken. Returns the response and what it says.
export async function post(page, path, message, options = {}) {
  const send = () => fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-CSRF-Token": page.csrfToken },
    body: JSON.stringify({ store: page.store, ...message }),
    ...options,
  });
  let response = await send();
  let answer = await response.json();
  if (answer.problem === "csrf") {
    page.csrfToken = (await (await fetch("/api/session")).json()).csrf_token ?? page.csrfToken;
    response = await send();
    answer = await response.json();
  }
  return { response, answer };
}
