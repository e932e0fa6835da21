// Runs before the page is painted: which colours, and that scripts are on. `#theme=dark` in the URL wins over the stored choice.
"use strict";
(() => {
  const root = document.documentElement;
  const order = ["auto", "light", "dark"];
  const named = new URLSearchParams(location.hash.slice(1)).get("theme");
  let theme = "auto";
  try {
    theme = localStorage.getItem("bentpipe-theme") || "auto";
  } catch {
    // storage is off: the choice lasts as long as the page
  }
  if (order.includes(named)) theme = named;
  const apply = () => {
    if (theme === "auto") delete root.dataset.theme;
    else root.dataset.theme = theme;
  };
  root.classList.add("scripts");
  apply();
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    button.textContent = theme;
    button.addEventListener("click", () => {
      theme = order[(order.indexOf(theme) + 1) % order.length];
      button.textContent = theme;
      try {
        localStorage.setItem("bentpipe-theme", theme);
      } catch {
        // as above
      }
      apply();
      document.dispatchEvent(new Event("themechange"));
    });
    document.addEventListener("click", (event) => {
      for (const menu of document.querySelectorAll("details.menu[open]")) {
        if (!menu.contains(event.target)) menu.open = false;
      }
    });
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      for (const menu of document.querySelectorAll("details.menu[open]")) {
        menu.open = false;
        menu.querySelector("summary").focus();
      }
    });
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new Event("themechange")));
})();
