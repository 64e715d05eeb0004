// Refreshes parts of the page when the server reports a change. Without JavaScript, reloading does the same.

const feed = document.querySelector("[data-feed]")?.dataset.feed;

if (feed) {
  const events = new EventSource(feed);
  events.addEventListener("change", refresh);
  events.addEventListener("over", () => events.close());
  events.addEventListener("open", refresh);
}

let refreshing = false;
let pending = false; // a change arrived during a refresh

async function refresh() {
  pending = refreshing;
  if (refreshing) return;
  refreshing = true;
  do {
    pending = false;
    const page = await fetchPage(location.href);
    if (page) page.querySelectorAll("[data-refresh]").forEach(replaceElement);
  } while (pending);
  refreshing = false;
}

// XMLHttpRequest parses the document without running scripts, and no string ever becomes markup.
function fetchPage(address) {
  return new Promise((resolve) => {
    const request = new XMLHttpRequest();
    request.open("GET", address);
    request.responseType = "document";
    request.onload = () => resolve(request.status === 200 ? request.response : null);
    request.onerror = () => resolve(null);
    request.send();
  });
}

// Keeps open details open, selected rows selected, and the focus where it is.
function replaceElement(updated) {
  const current = document.getElementById(updated.id);
  const focused = current.contains(document.activeElement) ? document.activeElement.id : "";
  for (const open of current.querySelectorAll("details[open][id]")) {
    updated.querySelector(`details#${CSS.escape(open.id)}`)?.setAttribute("open", "");
  }
  const checked = [...current.querySelectorAll("input:checked[id]")].map((input) => input.id);
  if (withoutClocks(current).isEqualNode(withoutClocks(updated))) return;
  current.replaceWith(document.adoptNode(updated));
  startClocks();
  for (const id of checked) {
    const input = document.getElementById(id);
    if (input) input.checked = true;
  }
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

function withoutClocks(element) {
  const copy = element.cloneNode(true);
  for (const clock of copy.querySelectorAll("[data-elapsed]")) clock.replaceWith();
  return copy;
}

// Counts the seconds of runs in progress from what the server measured, for the clock of this machine may be wrong.
const clocks = new Map();

function startClocks() {
  clocks.clear();
  for (const clock of document.querySelectorAll("[data-elapsed]")) {
    clocks.set(clock, performance.now() - 1000 * Number(clock.dataset.elapsed));
  }
}

function tick() {
  for (const [clock, started] of clocks) {
    const seconds = Math.floor((performance.now() - started) / 1000);
    clock.textContent = `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}`;
  }
}

startClocks();
setInterval(tick, 1000);
