// Chooses the colouring of the scatter plots: #by=controller. Without scripts both are shown.
"use strict";
(() => {
  const form = document.getElementById("colour");
  if (!form) return;
  const wanted = new URLSearchParams(location.hash.slice(1)).get("by");
  if (wanted === "controller") form.elements.by.value = wanted;
  const apply = () => {
    for (const group of document.querySelectorAll("[data-by]")) group.hidden = group.dataset.by !== form.elements.by.value;
  };
  form.addEventListener("change", () => {
    history.replaceState(null, "", `#by=${form.elements.by.value}`);
    apply();
  });
  apply();
})();
