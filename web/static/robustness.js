// Filters the rows of Robustness: #section=RFC+9114&level=MUST&verdict=failed. Without scripts all rows are shown.
"use strict";
(() => {
  const form = document.getElementById("rules");
  if (!form) return;
  const names = ["section", "level", "verdict"];
  const rows = [...document.querySelectorAll("tr[data-section]")];
  const wanted = new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
  for (const name of names) form.elements[name].value = wanted.get(name) || "";
  const apply = () => {
    const [section, level, verdict] = names.map((name) => form.elements[name].value.trim());
    const inSection = (text) => text.startsWith(section) && !/^\d/.test(section && text.slice(section.length));
    for (const row of rows) {
      const { section: at, level: of, verdicts } = row.dataset;
      row.hidden = !inSection(at) || (level !== "" && of !== level) || (verdict !== "" && !verdicts.split(" ").includes(verdict));
    }
    const shown = rows.filter((row) => !row.hidden && row.closest("tbody").id).length;
    form.querySelector("output").textContent = `${shown} ${shown === 1 ? "rule" : "rules"}`;
  };
  form.addEventListener("input", () => {
    const chosen = new URLSearchParams(names.map((name) => [name, form.elements[name].value.trim()]).filter(([, value]) => value));
    history.replaceState(null, "", chosen.size ? `#${chosen}` : location.pathname);
    apply();
  });
  apply();
})();
