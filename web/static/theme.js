// Runs before the page is painted: sets the theme, and marks that scripts are on. `#theme=dark` in the URL overrides the stored choice.
"use strict";
(() => {
  const root = document.documentElement;
  const order = ["auto", "light", "dark"];
  const named = new URLSearchParams(location.hash.slice(1)).get("theme");
  let theme = "auto";
  try {
    theme = localStorage.getItem("bentpipe-theme") || "auto";
  } catch {
    // without storage the choice lasts as long as the page
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
    const tell = () => {
      button.textContent = theme;
      button.setAttribute("aria-label", `${theme}: colours of the page`);
    };
    tell();
    button.addEventListener("click", () => {
      theme = order[(order.indexOf(theme) + 1) % order.length];
      tell();
      try {
        localStorage.setItem("bentpipe-theme", theme);
      } catch {
        // without storage, as above
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
// The run selector is a link to the list of runs. With scripts it becomes a menu, made from static/runs.js.
document.addEventListener("DOMContentLoaded", () => {
  const link = document.getElementById("run");
  const runs = window.bentpipeRuns;
  if (!runs || runs.length < 2) return;
  const { root, run } = document.body.dataset;
  const menu = document.createElement("details");
  menu.className = "menu";
  const summary = document.createElement("summary");
  summary.textContent = link.textContent;
  const list = document.createElement("ul");
  for (const [name, moment] of runs) {
    const item = document.createElement("a");
    item.href = `${root}${encodeURIComponent(name)}/index.html`;
    item.textContent = name;
    if (name === run) item.setAttribute("aria-current", "page");
    const small = document.createElement("small");
    small.textContent = ` ${moment}`;
    item.append(small);
    list.appendChild(document.createElement("li")).append(item);
  }
  const all = document.createElement("a");
  all.href = link.href;
  all.textContent = "All runs";
  list.appendChild(document.createElement("li")).append(all);
  menu.append(summary, list);
  link.replaceWith(menu);
});
// Links that open a qlog in qvis. They need HTTP, because qvis can't fetch from file://.
document.addEventListener("DOMContentLoaded", () => {
  if (!location.protocol.startsWith("http")) return;
  for (const link of document.querySelectorAll("a[data-qlog]")) {
    const open = document.createElement("a");
    open.href = `https://qvis.quictools.info/?file=${encodeURIComponent(link.href)}#/sequence`;
    open.textContent = "in qvis";
    link.after(" ", open);
  }
});
