// Before the first paint: the theme that was chosen, where one was.
"use strict";
try {
  const chosen = localStorage.getItem("palimpsest-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // Storage may be forbidden; the system's theme stays.
}
