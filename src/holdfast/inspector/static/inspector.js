// Keeps the page live: the server sends the main part whenever it has changed. Stored text arrives escaped.
"use strict";
const main = document.getElementById("main");
const notice = document.getElementById("notice");
const state = document.getElementById("live");
const said = state.textContent;
const SCRIPT = document.currentScript.src;
const RETRY_MS = 3000;
const DOUBT_MS = 3000;
let waiting = null;
let shownAt = performance.now();
let arrivedAt = shownAt;

// A person who types, is about to confirm, or has marked text to copy is not disturbed: the newest part waits.
function isBusy() {
  const active = document.activeElement;
  if (active && main.contains(active) && active.matches("input, button")) return true;
  if (main.querySelector(".remedy details[open]")) return true;
  const marked = document.getSelection();
  return Boolean(marked && !marked.isCollapsed && main.contains(marked.anchorNode));
}

function nameOf(one) {
  const part = one.closest("[data-key]");
  return [one.tagName, part ? part.dataset.key : "", one.getAttribute("href") || "", one.textContent].join(" ");
}

function show(html) {
  if (isBusy()) { waiting = html; return; }
  waiting = null;
  const open = new Set([...main.querySelectorAll("details[open]")].map((one) => one.dataset.key));
  const scrolled = [...main.querySelectorAll("pre, table")].map((one) => [one.scrollLeft, one.scrollTop]);
  const active = document.activeElement;
  const focused = active && active !== main && main.contains(active) ? nameOf(active) : null;
  main.innerHTML = html;
  shownAt = arrivedAt;
  main.querySelectorAll("details").forEach((one) => { if (open.has(one.dataset.key)) one.open = true; });
  main.querySelectorAll("pre, table").forEach((one, at) => {
    if (scrolled[at]) [one.scrollLeft, one.scrollTop] = scrolled[at];
  });
  if (focused) {
    const again = [...main.querySelectorAll("a, summary")].find((one) => nameOf(one) === focused);
    if (again) again.focus({ preventScroll: true });
  }
}

// Ages grow without a word from the server. Written like `holdfast.cli.terminal.length`.
function lengthOf(seconds) {
  const [day, hour] = [86400, 3600];
  if (seconds < 60) return `${seconds} s`;
  if (seconds < hour) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  if (seconds < day) return `${Math.floor(seconds / hour)} h ${Math.floor((seconds % hour) / 60)} min`;
  return `${Math.floor(seconds / day)} d ${Math.floor((seconds % day) / hour)} h`;
}

function grow() {
  if (isBusy()) return;
  const passed = performance.now() - shownAt;
  main.querySelectorAll(".age").forEach((one) => {
    const text = lengthOf(Math.max(0, Math.floor((Number(one.dataset.age) + passed) / 1000)));
    if (one.textContent !== text) one.textContent = text;
  });
}
setInterval(grow, 1000);

function catchUp() { if (waiting !== null) show(waiting); }
document.addEventListener("selectionchange", catchUp);
main.addEventListener("focusout", () => setTimeout(catchUp));
main.addEventListener("toggle", catchUp, true);

let source = null;
let asking = null;
let doubting = null;
let told = "";

function tell(word) {
  clearTimeout(doubting);
  doubting = null;
  state.textContent = `${said} · ${word}`;
}

// A stream ends every few seconds, and is continued: only one that stays away is worth a word.
function doubt() {
  doubting ??= setTimeout(() => tell("reconnecting"), DOUBT_MS);
}

function announce(...parts) {
  const line = document.createElement("p");
  line.append(...parts);
  notice.replaceChildren(line);
  notice.dataset.away = "yes";
}

function connect() {
  clearTimeout(asking);
  told = "";
  source = new EventSource(document.body.dataset.live);
  source.onopen = () => { if (told) tell(told); };
  source.addEventListener("main", (event) => {
    arrivedAt = performance.now();
    show(event.data);
    if (notice.dataset.away) { notice.textContent = ""; delete notice.dataset.away; }
    tell(told = "live");
  });
  source.addEventListener("away", (event) => {
    notice.innerHTML = event.data;
    notice.dataset.away = "yes";
    tell(told = "database away");
  });
  source.onerror = refused;
}

// A browser tries a lost connection again by itself, but gives up at a refusal: then this asks why, and goes on.
async function refused() {
  doubt();
  if (source === null || source.readyState !== EventSource.CLOSED) return;
  asking = setTimeout(connect, RETRY_MS);
  const answer = await fetch(SCRIPT, { cache: "no-store" }).catch(() => null);
  if (source === null || answer === null || ![401, 403].includes(answer.status)) return;
  const isNewToken = (await answer.text()).startsWith("The token");
  tell("signed out");
  if (notice.dataset.away === "yes" && notice.querySelector("a")) return;
  const again = document.createElement("a");
  again.href = location.href;
  again.textContent = "load this page again";
  announce(isNewToken
    ? "The inspector was started again, and has a new token. Open the address that it printed: this page continues then, or "
    : "You are signed out. Sign in, in another tab: this page continues then, or ", again, ".");
}

// A browser opens six connections to a server at most: a tab that is not seen keeps none of them.
function followVisibility() {
  const isSeen = document.visibilityState !== "hidden";
  if (isSeen && source === null) connect();
  if (isSeen || source === null) return;
  clearTimeout(asking);
  source.close();
  source = null;
  tell("paused");
}

if (document.body.dataset.live) {
  document.addEventListener("visibilitychange", followVisibility);
  followVisibility();
}
if (new URLSearchParams(location.search).has("done")) {
  const place = new URL(location.href);
  place.searchParams.delete("done");
  history.replaceState(null, "", place);
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.matches("input, textarea");
  if (event.key === "/" && !typing) { event.preventDefault(); document.getElementById("ask").focus(); }
  if (event.key === "Escape" && typing) event.target.blur();
  if ((event.key === "j" || event.key === "k") && !typing) {
    const links = [...main.querySelectorAll("a, summary, button")].filter((one) => one.checkVisibility());
    const at = links.indexOf(document.activeElement) + (event.key === "j" ? 1 : -1);
    if (links[at]) links[at].focus();
  }
  if (event.key === "n" && !typing) { const next = main.querySelector("a[rel=next]"); if (next) next.click(); }
});
