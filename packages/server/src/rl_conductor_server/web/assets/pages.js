// Looks at a page again when the server says that something on it has changed. Without it, a reload does the same.

const feed = document.querySelector("[data-feed]")?.dataset.feed;

if (feed) {
  const news = new EventSource(feed);
  news.addEventListener("change", look);
  news.addEventListener("over", () => news.close());
  news.addEventListener("open", look);
}

let looking = false;
let missed = false;

async function look() {
  missed = looking;
  if (looking) return;
  looking = true;
  do {
    missed = false;
    const page = await read(location.href);
    if (page) page.querySelectorAll("[data-fresh]").forEach(renew);
  } while (missed);
  looking = false;
}

// The browser's own parser for documents: it runs nothing, and there is no string that becomes markup.
function read(address) {
  return new Promise((done) => {
    const request = new XMLHttpRequest();
    request.open("GET", address);
    request.responseType = "document";
    request.onload = () => done(request.status === 200 ? request.response : null);
    request.onerror = () => done(null);
    request.send();
  });
}

// What the reader has opened stays open, and what has the focus keeps it.
function renew(fresh) {
  const old = document.getElementById(fresh.id);
  const focused = old.contains(document.activeElement) ? document.activeElement.id : "";
  for (const open of old.querySelectorAll("details[open][id]")) {
    fresh.querySelector(`details#${CSS.escape(open.id)}`)?.setAttribute("open", "");
  }
  if (old.isEqualNode(fresh)) return;
  old.replaceWith(document.adoptNode(fresh));
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}
