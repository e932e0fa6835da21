// Filters and the number shown in the matrices. The state is the URL's fragment: #show=goodput&clients=quinn,aioquic&cases=sat
"use strict";
(() => {
  const form = document.querySelector("form.filters");
  const units = JSON.parse(document.getElementById("units").textContent);
  const dimensions = ["servers", "clients", "cases"];
  const boxes = (name) => [...form.querySelectorAll(`input[name="${name}"]`)];
  const narrow = "\u202f";

  // three significant digits, at most two decimals, as the templates print them
  function digits(value) {
    const size = Math.abs(value);
    const places = size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2;
    return value.toLocaleString("en-US", { minimumFractionDigits: places, maximumFractionDigits: places });
  }

  function text(metric, value) {
    const [factor, unit] = units[metric];
    return `${digits(value * factor)}${narrow}${unit}`;
  }

  function read() {
    const state = new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
    const show = form.querySelector(`input[name="show"][value="${CSS.escape(state.get("show") || "")}"]`);
    (show || form.querySelector('input[name="show"]')).checked = true;
    for (const name of dimensions) {
      const wanted = state.has(name) ? new Set(state.get(name).split(",").map(decodeURIComponent)) : null;
      for (const box of boxes(name)) box.checked = !wanted || wanted.has(box.value);
    }
  }

  function write() {
    const parts = [];
    const show = form.elements.show.value;
    if (show !== "efficiency") parts.push(`show=${show}`);
    for (const name of dimensions) {
      const all = boxes(name);
      const checked = all.filter((box) => box.checked);
      if (checked.length < all.length) {
        parts.push(`${name}=${checked.map((box) => encodeURIComponent(encodeURIComponent(box.value))).join(",")}`);
      }
    }
    if (parts.length || location.hash.includes("=")) {
      history.replaceState(null, "", parts.length ? `#${parts.join("&")}` : location.pathname.split("/").pop() || "./");
    }
  }

  function apply() {
    const chosen = {};
    for (const name of dimensions) {
      const all = boxes(name);
      chosen[name] = new Set(all.filter((box) => box.checked).map((box) => box.value));
      const count = form.querySelector(`[data-count="${name}"]`);
      count.textContent = chosen[name].size === all.length ? "all" : `${chosen[name].size} of ${all.length}`;
    }
    for (const [attribute, name] of [["server", "servers"], ["client", "clients"], ["case", "cases"]]) {
      for (const element of document.querySelectorAll(`[data-${attribute}]`)) {
        element.toggleAttribute("data-hidden-" + attribute, !chosen[name].has(element.dataset[attribute]));
        element.hidden = ["server", "client", "case"].some((one) => element.hasAttribute("data-hidden-" + one));
      }
    }
    for (const group of document.querySelectorAll("#failures .group")) {
      group.hidden = !group.querySelector("tbody tr:not([hidden])");
    }
    const tests = document.querySelector("[data-tests]");
    if (tests) tests.hidden = ![...tests.querySelectorAll("dt[data-case]")].some((one) => !one.hidden);
    show(form.elements.show.value);
  }

  function show(metric) {
    const label = form.querySelector("input[name=show]:checked + span").textContent;
    for (const one of document.querySelectorAll("[data-shown]")) one.textContent = label;
    for (const matrix of document.querySelectorAll(".matrix[data-case]")) {
      const columns = new Map();
      const every = new Map();
      for (const row of matrix.querySelectorAll("tbody tr:not([hidden])")) {
        const inRow = new Map();
        for (const cell of row.querySelectorAll("td[data-values]:not([hidden])")) {
          const values = JSON.parse(cell.dataset.values);
          const value = values[metric];
          print(cell, metric, values);
          if (value === undefined) continue;
          const column = cell.dataset.client;
          if (!columns.has(column)) columns.set(column, new Map());
          for (const group of [inRow, every, columns.get(column)]) {
            group.set(cell.dataset.label, [...(group.get(cell.dataset.label) || []), value]);
          }
        }
        mean(row.querySelector('[data-mean="row"]'), metric, inRow);
      }
      for (const cell of matrix.querySelectorAll('[data-mean="column"]')) {
        mean(cell, metric, columns.get(cell.dataset.client) || new Map());
      }
      mean(matrix.querySelector('[data-mean="all"]'), metric, every);
    }
  }

  function print(cell, metric, values) {
    const [factor, unit] = units[metric];
    const number = cell.querySelector("b");
    number.textContent = values[metric] === undefined ? "–" : digits(values[metric] * factor);
    if (values[metric] !== undefined) {
      const small = document.createElement("small");
      small.textContent = unit === "%" ? unit : narrow + unit;
      number.append(small);
    }
    const second = metric === "goodput" ? "efficiency" : "goodput";
    const prefix = metric === "goodput" ? `η${narrow}` : "";
    cell.querySelector(".second").textContent = values[second] === undefined ? "" : prefix + text(second, values[second]);
  }

  // one line per protocol: cells with different labels have no common mean
  function mean(cell, metric, byLabel) {
    const lines = [...byLabel.keys()].sort().map((label) => {
      const values = byLabel.get(label);
      const line = document.createElement(cell.dataset.mean === "all" ? "b" : "span");
      if (label) {
        const mark = document.createElement("i");
        mark.className = "protocol";
        mark.textContent = label;
        line.append(mark, " ");
      }
      line.append(text(metric, values.reduce((sum, value) => sum + value, 0) / values.length));
      return line;
    });
    cell.replaceChildren(...(lines.length ? lines : ["–"]));
  }

  form.addEventListener("change", () => {
    write();
    apply();
  });
  form.addEventListener("reset", () => {
    setTimeout(() => {
      write();
      apply();
    });
  });
  addEventListener("hashchange", () => {
    read();
    apply();
  });
  read();
  apply();
})();
