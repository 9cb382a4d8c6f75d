// Keeps the page live: the server sends the main part whenever it has changed. Stored text arrives escaped.
"use strict";
const main = document.getElementById("main");
const state = document.getElementById("live");
const said = state.textContent;

function keepOpen(update) {
  const open = [...main.querySelectorAll("details")].map((one) => one.open);
  const focused = document.activeElement && main.contains(document.activeElement);
  if (focused && document.activeElement.matches("input, button")) return; // a person is at work here
  update();
  [...main.querySelectorAll("details")].forEach((one, at) => { if (open[at]) one.open = true; });
}

const source = new EventSource(document.body.dataset.live);
source.addEventListener("main", (event) => {
  keepOpen(() => { main.innerHTML = event.data; });
  state.textContent = `${said} · live`;
});
source.onerror = () => { state.textContent = `${said} · reconnecting`; };

document.addEventListener("keydown", (event) => {
  const typing = event.target.matches("input, textarea");
  if (event.key === "/" && !typing) { event.preventDefault(); document.getElementById("ask").focus(); }
  if (event.key === "Escape" && typing) event.target.blur();
  if ((event.key === "j" || event.key === "k") && !typing) {
    const links = [...main.querySelectorAll("a, summary, button")];
    const at = links.indexOf(document.activeElement) + (event.key === "j" ? 1 : -1);
    if (links[at]) links[at].focus();
  }
  if (event.key === "n" && !typing) { const next = main.querySelector("a[rel=next]"); if (next) next.click(); }
});
