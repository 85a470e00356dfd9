// Puts updates into the page. The server renders; this keeps the browser's copy equal to it:
// fragments by server-sent events, what moved is shown moving, ages are counted, a filter is sent while typing.
"use strict";
(() => {
  const SLOT = "LIVE-SLOT";
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const parse = (html) => {
    const template = document.createElement("template");
    template.innerHTML = html;
    return template.content.firstElementChild;
  };

  // --- one element becomes equal to another, and keeps focus, open details and scroll positions

  const keyOf = (node) => node.nodeType === 1 ? node.id || node.dataset.key || "" : "";

  function morph(from, to, fresh) {
    if (from.nodeName !== to.nodeName) { from.replaceWith(to); return; }
    for (const { name } of [...from.attributes]) {
      if (!to.hasAttribute(name) && !(name === "open" && from.nodeName === "DETAILS")) from.removeAttribute(name);
    }
    for (const { name, value } of to.attributes) {
      if (from.getAttribute(name) !== value) from.setAttribute(name, value);
    }
    if (from.nodeName === "INPUT") return;
    morphChildren(from, to, fresh);
  }

  function morphChildren(from, to, fresh) {
    const keyed = new Map();
    for (const child of from.children) if (keyOf(child)) keyed.set(keyOf(child), child);
    let at = from.firstChild;
    for (const wanted of [...to.childNodes]) {
      const placed = place(wanted, at, keyed, fresh);
      if (placed !== at) from.insertBefore(placed, at);
      else at = at.nextSibling;
    }
    while (at) { const next = at.nextSibling; at.remove(); at = next; }
  }

  // The node that stands for `wanted`: one that is there already, if possible.
  function place(wanted, at, keyed, fresh) {
    if (wanted.nodeName === SLOT) {
      const id = wanted.getAttribute("ref");
      return document.getElementById(id) || build(id, fresh) || wanted;
    }
    const key = keyOf(wanted);
    if (key) {
      const known = keyed.get(key);
      if (known && known.nodeName === wanted.nodeName) { morph(known, wanted, fresh); return known; }
      return fill(wanted, fresh);
    }
    if (at && at.nodeType === wanted.nodeType && at.nodeName === wanted.nodeName && !keyOf(at)) {
      if (wanted.nodeType === 1) morph(at, wanted, fresh);
      else if (at.nodeValue !== wanted.nodeValue) at.nodeValue = wanted.nodeValue;
      return at;
    }
    return wanted.nodeType === 1 ? fill(wanted, fresh) : wanted;
  }

  function build(id, fresh) {
    const html = fresh.get(id);
    if (html === undefined) return null;
    fresh.delete(id);
    return fill(parse(html), fresh);
  }

  function fill(element, fresh) {
    for (const slot of element.querySelectorAll(SLOT)) {
      const id = slot.getAttribute("ref");
      const found = document.getElementById(id) || build(id, fresh);
      if (found) slot.replaceWith(found);
    }
    return element;
  }

  function applyFragments(fragments) {
    const before = positions();
    const focused = document.activeElement && document.activeElement.id;
    const fresh = new Map(Object.entries(fragments));
    for (const id of Object.keys(fragments)) {
      const there = document.getElementById(id);
      if (!there || !fresh.has(id)) continue;
      const html = fresh.get(id);
      fresh.delete(id);
      morph(there, parse(html), fresh);
    }
    if (focused && document.activeElement === document.body) document.getElementById(focused)?.focus();
    countAges();
    showMoves(before);
    announce(fragments);
    document.dispatchEvent(new CustomEvent("fragments", { detail: fragments }));
  }

  // --- what is at another place than before moves there

  const movable = () => document.querySelectorAll("[data-move]");

  function positions() {
    const found = new Map();
    if (calm.matches) return found;
    for (const element of movable()) found.set(element.dataset.move, element.getBoundingClientRect());
    return found;
  }

  function showMoves(before) {
    if (!before.size) return;
    for (const element of movable()) {
      const old = before.get(element.dataset.move);
      if (!old) { element.animate([{ opacity: 0 }, { opacity: 1 }], { duration: 300 }); continue; }
      const now = element.getBoundingClientRect();
      const x = old.left - now.left, y = old.top - now.top;
      if (Math.abs(x) + Math.abs(y) < 40) continue;
      element.classList.add("moving");
      const moving = element.animate(
        [{ transform: `translate(${x}px, ${y}px)` }, { transform: "none" }],
        { duration: 600, easing: "cubic-bezier(.3, .8, .3, 1)" });
      moving.finished.catch(() => {}).then(() => element.classList.remove("moving"));
    }
  }

  // --- for readers of the screen: what has changed, at most once in a while

  let announced = 0, pending = 0;
  function announce(fragments) {
    const box = document.getElementById("announcement");
    const changed = Object.keys(fragments).map((id) => document.getElementById(id))
      .find((element) => element && element.dataset.announce);
    if (!box || !changed) return;
    clearTimeout(pending);
    pending = setTimeout(() => {
      announced = Date.now();
      const words = [...changed.children].map((child) => child.textContent.trim()).filter(Boolean);
      box.textContent = `${changed.dataset.announce}: ${words.join(", ")}`;
    }, Math.max(500, announced + 5000 - Date.now()));
  }

  // --- ages

  const UNITS = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];
  function formatAge(seconds) {
    const parts = [];
    for (const [unit, size] of UNITS) {
      const count = Math.floor(seconds / size);
      seconds -= count * size;
      if (count || parts.length) parts.push(`${count}${unit}`);
    }
    return parts.slice(0, 2).join(" ") || "0s";
  }

  function countAges() {
    for (const time of document.querySelectorAll("time[data-age]")) {
      const seconds = (Date.now() - Date.parse(time.dateTime)) / 1000;
      const age = formatAge(Math.abs(seconds));
      const text = seconds < 0 ? `in ${age}` : time.dataset.age === "ago" ? `${age} ago` : `for ${age}`;
      if (time.textContent !== text) { time.title = time.title || time.textContent; time.textContent = text; }
    }
  }

  // --- updates, while the page is visible

  let source = null, version = document.body.dataset.version || "";

  function setConnection(state) {
    const shown = document.getElementById("connection");
    if (!shown || shown.dataset.state === state) return;
    shown.dataset.state = state;
    shown.textContent = state;
  }

  function connect() {
    if (source || !version || document.hidden) return;
    const address = new URL(location.href);
    address.hash = "";
    address.searchParams.set("since", version);
    source = new EventSource(address);
    source.onopen = () => setConnection("live");
    source.addEventListener("fragments", (event) => {
      version = event.lastEventId;
      applyFragments(JSON.parse(event.data));
    });
    source.onerror = () => {
      const ended = source.readyState === EventSource.CLOSED;
      setConnection(ended ? "ended" : "connecting");
    };
  }

  function disconnect() {
    if (source) source.close();
    source = null;
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { disconnect(); return; }
    setConnection("connecting");
    connect();
  });
  addEventListener("pagehide", disconnect);
  addEventListener("pageshow", connect);

  // --- another address of the same view, without loading the page

  let loading = null;
  async function show(address) {
    loading?.abort();
    loading = new AbortController();
    try {
      const answer = await fetch(address, { signal: loading.signal });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const main = page.getElementById("main");
      if (!main) { location.assign(address); return; }  // the session has ended
      disconnect();
      history.replaceState(null, "", address);
      document.title = page.title;
      version = page.body.dataset.version || "";
      morphChildren(document.getElementById("main"), main, new Map());
      countAges();
      connect();
    } catch (error) {
      if (error.name !== "AbortError") throw error;
    }
  }

  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-show]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey || event.button) return;
    event.preventDefault();
    show(new URL(link.getAttribute("href"), location.href));
  });

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-copy]");
    if (!button) return;
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });

  let typing = 0;
  document.addEventListener("input", (event) => {
    const form = event.target.closest("form[data-filter]");
    if (!form) return;
    clearTimeout(typing);
    typing = setTimeout(() => show(addressOf(form)), 150);
  });
  document.addEventListener("submit", (event) => {
    if (!event.target.matches("form[data-filter]")) return;
    event.preventDefault();
    clearTimeout(typing);
    show(addressOf(event.target));
  });

  function addressOf(form) {
    const address = new URL(location.href);
    address.search = "";
    for (const [name, value] of new FormData(form)) if (value) address.searchParams.set(name, value);
    return address;
  }

  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, textarea, select")) return;
    const box = document.getElementById("filter");
    if (!box) return;
    event.preventDefault();
    box.focus();
    box.select();
  });

  setInterval(() => { if (!document.hidden) countAges(); }, 1000);
  countAges();
  connect();
})();
