// Filters, the number in the matrices, and the axes of their rows and columns. The state is the URL's fragment:
// #show=goodput&of=mean&clients=quinn,aioquic&cases=sat&vias=none,openvpn&links=geo&rows=link&columns=via
"use strict";
(() => {
  const form = document.getElementById("filters");
  const units = JSON.parse(document.getElementById("units").textContent);
  const dimensions = {};
  for (const menu of form.querySelectorAll("fieldset[data-axis]")) {
    dimensions[menu.querySelector("input").name] = menu.dataset.axis;
  }
  const pivots = ["rows", "columns"].filter((name) => form.elements[name]);
  const narrow = "\u202f";
  const rules = document.head.appendChild(document.createElement("style"));
  const boxes = (name) => [...form.querySelectorAll(`input[name="${name}"]`)];
  const matrices = [...document.querySelectorAll(".matrix:has(.numbers-of)")].map((section) => ({ section }));

  // three significant digits, at most two decimals, as the templates print them
  function digits(value) {
    const size = Math.abs(value);
    const places = size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2;
    const text = value.toFixed(places);
    return size < 1000 ? text : text.replace(/\B(?=(\d{3})+$)/g, ",");
  }

  function text(metric, value) {
    const [factor, unit] = units[metric];
    return `${digits(value * factor)}${narrow}${unit}`;
  }

  function choose(name, value) {
    const radio = form.querySelector(`input[name="${name}"][value="${CSS.escape(value || "")}"]`);
    (radio || form.querySelector(`input[name="${name}"]`)).checked = true;
  }

  function read() {
    const state = new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
    choose("show", state.get("show"));
    choose("of", state.get("of"));
    for (const name in dimensions) {
      const wanted = state.has(name) ? new Set(state.get(name).split(",").map(decodeURIComponent)) : null;
      for (const box of boxes(name)) box.checked = !wanted || wanted.has(box.value);
    }
    for (const name of pivots) {
      form.elements[name].value = state.get(name) || "";
      if (form.elements[name].selectedIndex < 0) form.elements[name].value = "";
    }
  }

  function write() {
    const parts = [];
    for (const name of ["show", "of"]) {
      const all = [...form.querySelectorAll(`input[name="${name}"]`)];
      if (!all[0].checked) parts.push(`${name}=${form.elements[name].value}`);
    }
    for (const name in dimensions) {
      const all = boxes(name);
      const checked = all.filter((box) => box.checked);
      if (checked.length < all.length) {
        parts.push(`${name}=${checked.map((box) => encodeURIComponent(encodeURIComponent(box.value))).join(",")}`);
      }
    }
    for (const name of pivots) if (form.elements[name].value) parts.push(`${name}=${form.elements[name].value}`);
    if (parts.length || location.hash.includes("=")) {
      history.replaceState(null, "", parts.length ? `#${parts.join("&")}` : location.pathname.split("/").pop() || "./");
    }
  }

  // One style sheet hides all parts that are not chosen. This is much faster than touching thousands of cells.
  function apply() {
    const hidden = [];
    for (const name in dimensions) {
      const all = boxes(name);
      const off = all.filter((box) => !box.checked).map((box) => box.value);
      const left = all.length - off.length;
      form.querySelector(`[data-count="${name}"]`).textContent = off.length ? `${left} of ${all.length}` : "all";
      hidden.push(...off.map((value) => `[data-${dimensions[name]}="${CSS.escape(value)}"]`));
    }
    rules.textContent = hidden.length ? `${hidden.join(",")}{display:none!important}` : "";
    const chosen = {};
    for (const name in dimensions) chosen[dimensions[name]] = new Set(boxes(name).filter((box) => box.checked).map((box) => box.value));
    for (const group of document.querySelectorAll("#failures .group")) {
      group.hidden = ![...group.querySelectorAll("tbody tr")].some((row) => isChosen(row, chosen));
    }
    const tests = document.querySelector("[data-tests]");
    // The sums of a compact matrix count all cases, so with fewer cases each case is shown.
    if (tests) tests.classList.toggle("compact", "compact" in tests.dataset && chosen.case.size === boxes("cases").length);
    if (tests) tests.hidden = ![...tests.querySelectorAll("dt[data-case]")].some((term) => isChosen(term, chosen));
    const shown = `${form.elements.show.value}/${form.elements.of.value}`;
    const label = form.querySelector("input[name=show]:checked + span").textContent;
    for (const caption of document.querySelectorAll("[data-shown]")) caption.textContent = `${form.elements.of.value} ${label}`;
    if (pivots.some((name) => form.elements[name].value)) {
      turn += 1;
      for (const matrix of matrices) draw(matrix, shown, chosen, () => true);
      pivot(shown, chosen);
      return;
    }
    turned.remove();
    grid.hidden = false;
    later(shown, chosen);
  }

  // True when the element's value on each of its axes is chosen.
  function isChosen(element, chosen) {
    for (const axis in chosen) {
      if (axis in element.dataset && !chosen[axis].has(element.dataset[axis])) return false;
    }
    return true;
  }

  // Draws the matrices with other rows and columns. The cells are copies, so filters and links work as before.
  const grid = document.querySelector(".matrices");
  const turned = document.createElement("div");
  turned.className = "matrices pivoted";

  function pivot(shown, chosen) {
    const axes = ["server", "client", "via", "link"];
    const rows = form.elements.rows.value || axes.find((axis) => axis !== form.elements.columns.value);
    const columns = form.elements.columns.value && form.elements.columns.value !== rows ? form.elements.columns.value : axes.find((axis) => axis !== rows);
    const groups = new Map();
    const values = Object.fromEntries(axes.map((axis) => [axis, new Set()]));
    for (const { section, numbers, rows: lines } of matrices) {
      lines.flatMap((line) => line.cells).forEach((cell, at) => {
        for (const axis of axes) values[axis].add(cell.dataset[axis]);
        const rest = axes.filter((axis) => axis !== rows && axis !== columns);
        const key = JSON.stringify([section.dataset.case, ...rest.map((axis) => cell.dataset[axis])]);
        if (!groups.has(key)) groups.set(key, { case: section.dataset.case, rest: rest.map((axis) => [axis, cell.dataset[axis]]), cells: new Map() });
        const value = isChosen(cell, chosen) ? numbers[shown][at] : null;
        groups.get(key).cells.set(JSON.stringify([cell.dataset[rows], cell.dataset[columns]]), { cell, label: numbers.labels[at], value });
      });
    }
    const metric = shown.split("/")[0];
    turned.replaceChildren(...[...groups.values()].map((group) => turnedMatrix(group, rows, columns, values, metric)));
    turned.classList.toggle("wide", values[columns].size > 5);
    grid.after(turned);
    grid.hidden = true;
  }

  // Makes a matrix with means, as in the other matrices. Cells of different links have no common mean.
  function turnedMatrix(group, rows, columns, values, metric) {
    const section = element("section", "matrix");
    section.dataset.case = group.case;
    for (const [axis, value] of group.rest) section.dataset[axis] = value;
    const named = group.rest.filter(([axis]) => values[axis].size > 1).map(([axis, value]) => `${axis} ${value}`);
    section.append(element("h2", "", [group.case, ...named].join(", ")));
    const table = element("table", "cells");
    const present = (axis, at) => [...values[axis]].filter((value) => [...group.cells.keys()].some((key) => JSON.parse(key)[at] === value));
    const [ys, xs] = [present(rows, 0), present(columns, 1)];
    table.style.setProperty("--columns", xs.length);
    table.style.setProperty("--name", 12);
    const head = table.createTHead().insertRow();
    const corner = element("th", "corner");
    corner.append(element("span", "", `${rows} ↓`), " ", element("span", "", `${columns} →`));
    head.append(corner, ...xs.map((x) => heading("col", columns, x)));
    const meanOfRow = columns !== "link";
    const meanOfColumn = rows !== "link";
    if (meanOfRow) head.append(meanHeading("col"));
    const body = table.createTBody();
    const inColumn = xs.map(() => new Map());
    const every = new Map();
    for (const y of ys) {
      const row = body.insertRow();
      row.dataset[rows] = y;
      row.append(heading("row", rows, y));
      const inRow = new Map();
      xs.forEach((x, at) => {
        const place = group.cells.get(JSON.stringify([y, x]));
        const copy = place ? place.cell.cloneNode(true) : element("td", "none", "not run");
        copy.removeAttribute("id");
        copy.dataset[columns] = x;
        row.append(copy);
        if (place) count(place.label, place.value, [inRow, inColumn[at], every]);
      });
      if (meanOfRow) row.append(meanCell("row", metric, inRow));
    }
    if (meanOfColumn) {
      const foot = table.createTFoot().insertRow();
      foot.append(meanHeading("row"), ...inColumn.map((column, at) => meanCell("column", metric, column, columns, xs[at])));
      if (meanOfRow) foot.append(meanCell("all", metric, every));
    }
    const scroll = element("div", "scroll");
    scroll.append(table);
    section.append(scroll);
    return section;
  }

  function meanHeading(scope) {
    const created = element("th", scope === "col" ? "mean" : "", "mean");
    created.scope = scope;
    return created;
  }

  function meanCell(kind, metric, byLabel, axis, value) {
    const cell = element("td", "mean");
    cell.dataset.mean = kind;
    if (axis) cell.dataset[axis] = value;
    mean(cell, metric, byLabel);
    return cell;
  }

  function heading(scope, axis, value) {
    const created = element("th", "", value);
    created.scope = scope;
    if (scope === "col") created.dataset[axis] = value;
    return created;
  }

  function element(tag, className, text) {
    const created = document.createElement(tag);
    if (className) created.className = className;
    if (text) created.textContent = text;
    return created;
  }

  // Draws the rows on the screen first, all others when there is time. An observer is used because reading boxes would
  // lay the page out twice.
  const seen = new Set();
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) seen[entry.isIntersecting ? "add" : "delete"](entry.target);
  });
  for (const { section } of matrices) for (const part of [section, ...section.querySelectorAll("tbody tr")]) watch.observe(part);

  let turn = 0;
  function later(shown, chosen) {
    const mine = ++turn;
    const waiting = [...matrices];
    // Until the observer reports, the first matrix counts as the one on the screen.
    if (mine === 1 && !seen.size && waiting.length) draw(waiting.shift(), shown, chosen, () => true);
    for (const matrix of matrices) if (seen.has(matrix.section)) draw(matrix, shown, chosen, (row) => seen.has(row));
    inTurn(waiting, mine, (matrix) => {
      draw(matrix, shown, chosen, () => true);
      ahead(matrix.section);
    });
  }

  // The style sheet skips sections that are far from the screen. They are laid out when there is time, so that they
  // appear at once later. Sections on the screen are left out, because they would blink.
  function ahead(section) {
    if (seen.has(section)) return;
    section.style.contentVisibility = "visible";
    section.getBoundingClientRect();
    section.style.contentVisibility = "";
  }

  addEventListener("load", () => inTurn([...matrices], 0, (matrix) => ahead(matrix.section)));

  // Works through the sections one after the other when there is time. A later change starts again for all.
  function inTurn(waiting, mine, work) {
    const next = () => {
      if (mine !== turn || !waiting.length) return;
      work(waiting.shift());
      soon(next);
    };
    soon(next);
  }

  function soon(work) {
    if (window.requestIdleCallback) requestIdleCallback(work, { timeout: 100 });
    else setTimeout(work);
  }

  function prepare(matrix) {
    matrix.numbers = JSON.parse(matrix.section.querySelector(".numbers-of").textContent);
    const table = matrix.section.querySelector("table.cells");
    matrix.rows = [...table.tBodies[0].rows].map((row) => ({
      row,
      shown: `${form.querySelector("input[name=show]").value}/median`,
      cells: [...row.cells].filter((cell) => cell.matches("td:not(.mean)")),
      mean: row.querySelector("[data-mean]"),
    }));
    for (const row of matrix.rows) row.texts = row.cells.map(texts);
    matrix.foot = table.tFoot ? [...table.tFoot.rows[0].cells].slice(1) : null;
  }

  // The texts of a cell that change; null for a cell without a number.
  function texts(cell) {
    const number = cell.querySelector("b:has(small)");
    if (!number) return null;
    const second = cell.querySelector(".second");
    return [...number.childNodes].map((node) => node.firstChild || node).concat(second.firstChild || second.appendChild(new Text()));
  }

  function draw(matrix, shown, chosen, wanted) {
    if (!matrix.numbers) prepare(matrix);
    const [metric, statistic] = shown.split("/");
    const values = matrix.numbers[shown];
    const second = metric === "goodput" ? "efficiency" : "goodput";
    const seconds = matrix.numbers[`${second}/${statistic}`];
    const width = matrix.rows[0].cells.length;
    const columns = matrix.rows[0].cells.map(() => new Map());
    const every = new Map();
    matrix.rows.forEach((row, y) => {
      const inRow = new Map();
      const stale = row.shown !== shown && wanted(row.row);
      row.cells.forEach((cell, x) => {
        const at = y * width + x;
        const label = matrix.numbers.labels[at];
        if (label === null) return;
        if (stale && row.texts[x]) print(row.texts[x], metric, values[at], second, seconds[at]);
        if (values[at] === null || !isChosen(cell, chosen)) return;
        count(label, values[at], [inRow, every, columns[x]]);
      });
      if (stale) row.shown = shown;
      if (row.mean) mean(row.mean, metric, inRow);
    });
    if (!matrix.foot) return;
    columns.forEach((column, x) => mean(matrix.foot[x], metric, column));
    mean(matrix.foot[width], metric, every);
  }

  // Sums by label; a cell without a label or a number counts nowhere.
  function count(label, value, groups) {
    if (label === null || value === null) return;
    for (const group of groups) {
      const known = group.get(label) || { sum: 0, count: 0 };
      group.set(label, { sum: known.sum + value, count: known.count + 1 });
    }
  }

  // An equal text is not set again, because the browser would lay it out again.
  function print(nodes, metric, value, second, other) {
    const [factor, unit] = units[metric];
    const prefix = second === "efficiency" ? `η${narrow}` : "";
    const wanted = [
      value === null ? "–" : digits(value * factor),
      value === null ? "" : unit === "%" ? unit : narrow + unit,
      other === null ? "" : prefix + text(second, other),
    ];
    nodes.forEach((node, index) => {
      if (node.data !== wanted[index]) node.data = wanted[index];
    });
  }

  // one line per protocol: cells with different labels have no common mean
  const printed = new WeakMap();
  function mean(cell, metric, byLabel) {
    const labels = [...byLabel.keys()].sort();
    const texts = labels.map((label) => text(metric, byLabel.get(label).sum / byLabel.get(label).count));
    const whole = JSON.stringify([labels, texts]);
    if (printed.get(cell) === whole) return;
    printed.set(cell, whole);
    const lines = labels.map((label, index) => {
      const line = document.createElement(cell.dataset.mean === "all" ? "b" : "span");
      if (label) {
        const mark = document.createElement("i");
        mark.className = "protocol";
        mark.textContent = label;
        line.append(mark, " ");
      }
      line.append(texts[index]);
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
  if (location.hash.includes("=")) apply();
})();
