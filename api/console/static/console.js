"use strict";

// Storage may be forbidden: then a choice lasts as long as its page.
const kept = {
  get(name) {
    try {
      return localStorage.getItem(`palimpsest-${name}`);
    } catch {
      return null;
    }
  },
  set(name, value) {
    try {
      localStorage.setItem(`palimpsest-${name}`, value);
    } catch {
      // As above.
    }
  },
};

// ---- Theme

document.getElementById("theme")?.addEventListener("click", () => {
  const root = document.documentElement;
  const isDark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  kept.set("theme", root.dataset.theme);
});

// ---- Where the navigation is wider than a phone, the page's own entry is in sight

for (const entry of document.querySelectorAll(".bar nav [aria-current], .tabs [aria-current]")) {
  entry.scrollIntoView({ block: "nearest", inline: "nearest" });
}

// ---- Refresh: parts of a page that listen for `refresh` fetch themselves anew, unless somebody is at something

const refresh = document.getElementById("refresh");
let timer = 0;

function isBusy() {
  const live = document.getElementById("live");
  if (document.hidden || !live) return true;
  if (live.querySelector("details[open]") || document.querySelector("dialog[open]")) return true;
  return !getSelection().isCollapsed || live.matches(":has(svg:hover)");
}

function schedule() {
  clearInterval(timer);
  const seconds = Number(refresh.value);
  document.body.classList.toggle("is-live", seconds > 0 && !document.hidden && !!document.getElementById("live"));
  if (seconds > 0) {
    timer = setInterval(() => {
      if (!isBusy()) document.body.dispatchEvent(new Event("refresh"));
    }, seconds * 1000);
  }
}

if (refresh) {
  const before = kept.get("refresh");
  if (before !== null && [...refresh.options].some((option) => option.value === before)) refresh.value = before;
  refresh.addEventListener("change", () => {
    kept.set("refresh", refresh.value);
    schedule();
  });
  document.addEventListener("visibilitychange", schedule);
  schedule();
}

// ---- Ages go on by themselves, also where nothing is fetched anew: by the server's clock, as `formats.py` writes them

const ahead = Date.parse(document.documentElement.dataset.now) - Date.now() || 0;

function rough(seconds) {
  const steps = [
    [60, 1, "s"],
    [3600, 60, "min"],
    [86400, 3600, "h"],
    [Infinity, 86400, "d"],
  ];
  const [, unit, name] = steps.find(([below]) => seconds < below);
  return `${Math.floor(seconds / unit)} ${name}`;
}

setInterval(() => {
  if (document.hidden || !getSelection().isCollapsed) return;
  for (const time of document.querySelectorAll("time[data-age]")) {
    const seconds = (Date.now() + ahead - Date.parse(time.dateTime)) / 1000;
    const text = seconds < 0 ? `in ${rough(-seconds)}` : `${rough(seconds)} ago`;
    if (time.textContent !== text) time.textContent = text;
  }
}, 1000);

// ---- Forms that take effect as soon as something is chosen; their button is for those without scripts

for (const field of document.querySelectorAll("[data-submits]")) {
  field.addEventListener("change", () => field.form.requestSubmit());
}

// ---- What is shown once: the page's address becomes the list's, so that reloading shows that, not the secret again

const secret = document.querySelector("[data-secret]");
if (secret) {
  history.replaceState(null, "", secret.dataset.secret);
  secret.addEventListener("focus", () => secret.select());
}

// ---- Plots: read off the values under the pointer, or with the arrow keys

const number = new Intl.NumberFormat("en");

function readable(figure) {
  if (figure.dataset.isReadable) return;
  figure.dataset.isReadable = "yes";
  const svg = figure.querySelector("svg");
  const reading = figure.querySelector(".reading");
  const readout = figure.querySelector(".readout");
  const points = [...figure.querySelectorAll(".points li")].map((item) => ({
    x: Number(item.dataset.x),
    seq: Number(item.dataset.seq),
    held: Number(item.dataset.held),
    shown: Number(item.dataset.shown),
  }));
  if (!points.length) return;
  const top = Number(figure.dataset.top);
  const bottom = Number(figure.dataset.bottom);
  const most = Number(figure.dataset.most) || 1;
  const y = (tokens) => bottom - ((bottom - top) * tokens) / most;
  let at = points.length - 1;

  function show(index) {
    at = Math.max(0, Math.min(points.length - 1, index));
    const point = points[at];
    reading.removeAttribute("hidden");
    const line = reading.querySelector("line");
    line.setAttribute("x1", point.x);
    line.setAttribute("x2", point.x);
    for (const [name, tokens] of [["held", point.held], ["shown", point.shown]]) {
      const dot = reading.querySelector(`.dot-${name}`);
      dot.setAttribute("cx", point.x);
      dot.setAttribute("cy", y(tokens));
    }
    const text = `Message ${number.format(point.seq)}: stored ${number.format(point.held)}, context ${number.format(point.shown)}`;
    readout.textContent = text;
  }

  function hide() {
    reading.setAttribute("hidden", "");
    readout.textContent = "\u00a0";
  }

  svg.addEventListener("pointermove", (event) => {
    const matrix = svg.getScreenCTM();
    if (!matrix) return;
    const x = (event.clientX - matrix.e) / matrix.a;
    let nearest = 0;
    for (let index = 1; index < points.length; index += 1) {
      if (Math.abs(points[index].x - x) <= Math.abs(points[nearest].x - x)) nearest = index;
    }
    show(nearest);
  });
  svg.addEventListener("pointerleave", hide);
  svg.setAttribute("tabindex", "0");
  svg.addEventListener("focus", () => show(at));
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: points.length - 1 };
    if (event.key in steps) {
      show(steps[event.key]);
      event.preventDefault();
    }
  });
}

// Where a plot is wider than the screen its newest end is in view, until somebody looks at another part of it.

let fromEnd = 0;

function scrolled(wrap) {
  if (wrap.dataset.isScrolled) return;
  wrap.dataset.isScrolled = "yes";
  wrap.scrollLeft = wrap.scrollWidth - wrap.clientWidth - fromEnd;
  wrap.addEventListener("scroll", () => {
    fromEnd = wrap.scrollWidth - wrap.clientWidth - wrap.scrollLeft;
  });
}

// On a phone a table that is wider than the screen becomes a list: each row with the names of its columns.

const phone = matchMedia("(max-width: 560px)");

function fit(table) {
  table.classList.remove("is-stacked");
  const { paddingLeft, paddingRight } = getComputedStyle(table.parentElement);
  const room = table.parentElement.clientWidth - parseFloat(paddingLeft) - parseFloat(paddingRight);
  if (!phone.matches || !table.tHead || table.offsetWidth <= room + 1) return;
  const names = [...table.tHead.rows[0].cells].map((cell) => cell.textContent.trim());
  for (const body of table.tBodies) {
    for (const row of body.rows) {
      [...row.cells].forEach((cell, index) => {
        cell.dataset.label = names[index] ?? "";
        cell.classList.toggle("is-empty", ["", "\u2013"].includes(cell.textContent.trim()) && !cell.querySelector("svg"));
      });
    }
  }
  table.classList.add("is-stacked");
}

phone.addEventListener("change", () => document.querySelectorAll("table.rows").forEach(fit));
document.addEventListener("toggle", (event) => event.target.querySelectorAll?.("table.rows").forEach(fit), true);

function enliven(root) {
  root.querySelectorAll("table.rows").forEach(fit);
  for (const wrap of root.querySelectorAll("[data-plot] .plot-wrap")) scrolled(wrap);
  for (const figure of root.querySelectorAll("[data-plot]")) readable(figure);
}

enliven(document);
document.body.addEventListener("htmx:afterSettle", (event) => {
  enliven(document);
  if (event.detail.target?.id === "peek") {
    event.detail.target.scrollTop = 0;
    event.detail.target.focus({ preventScroll: true });
  }
});

// ---- The panel beside a list

let opener = null;

document.body.addEventListener("htmx:beforeRequest", (event) => {
  if (event.detail.target?.id !== "peek") return;
  opener = event.detail.elt;
  for (const row of document.querySelectorAll("tr.is-open")) row.classList.remove("is-open");
  opener.closest("tr")?.classList.add("is-open");
});

function closePeek() {
  const peek = document.getElementById("peek");
  if (!peek || !peek.hasChildNodes()) return false;
  peek.replaceChildren();
  for (const row of document.querySelectorAll("tr.is-open")) row.classList.remove("is-open");
  opener?.focus();
  return true;
}

document.addEventListener("click", (event) => {
  if (event.target.closest("[data-close]")) closePeek();
});

// ---- Keyboard

const shortcuts = document.getElementById("shortcuts");
document.getElementById("help")?.addEventListener("click", () => shortcuts.showModal());

let isGoing = false;

function step(by) {
  const links = [...document.querySelectorAll(".row-link")];
  if (!links.length) return;
  const next = links.indexOf(document.activeElement) + by;
  links[Math.max(0, Math.min(links.length - 1, next))].focus();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  if (event.target.closest("input, textarea, select") || document.querySelector("dialog[open]")) return;
  const going = isGoing;
  isGoing = false;
  if (going) {
    const link = document.querySelector(`[data-go="${CSS.escape(event.key)}"]`);
    if (link) link.click();
    return;
  }
  const actions = {
    "/": () => document.getElementById("find")?.focus(),
    "?": () => shortcuts.showModal(),
    g: () => {
      isGoing = true;
      setTimeout(() => {
        isGoing = false;
      }, 1500);
    },
    j: () => step(1),
    k: () => step(-1),
    p: () => {
      if (!refresh) return;
      refresh.value = refresh.value === "0" ? "5" : "0";
      refresh.dispatchEvent(new Event("change"));
    },
    Escape: () => closePeek(),
  };
  if (event.key in actions) {
    actions[event.key]();
    if (event.key !== "Escape") event.preventDefault();
  }
});
