// Filters and the number shown in the matrices. The state is the URL's fragment: #show=goodput&of=mean&clients=quinn,aioquic&cases=sat
"use strict";
(() => {
  const form = document.getElementById("filters");
  const units = JSON.parse(document.getElementById("units").textContent);
  const dimensions = { servers: "server", clients: "client", cases: "case" };
  const narrow = "\u202f";
  const rules = document.head.appendChild(document.createElement("style"));
  const boxes = (name) => [...form.querySelectorAll(`input[name="${name}"]`)];
  const matrices = [...document.querySelectorAll(".matrix[data-case]")].map((section) => ({ section }));

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
    if (parts.length || location.hash.includes("=")) {
      history.replaceState(null, "", parts.length ? `#${parts.join("&")}` : location.pathname.split("/").pop() || "./");
    }
  }

  // One style sheet hides what is not chosen: much faster than touching thousands of cells.
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
    for (const name in dimensions) chosen[name] = new Set(boxes(name).filter((box) => box.checked).map((box) => box.value));
    for (const group of document.querySelectorAll("#failures .group")) {
      group.hidden = ![...group.querySelectorAll("tbody tr")].some(
        (row) => chosen.servers.has(row.dataset.server) && chosen.clients.has(row.dataset.client) && chosen.cases.has(row.dataset.case),
      );
    }
    const tests = document.querySelector("[data-tests]");
    // The sums of a compact matrix are over all cases: with fewer, each case is shown.
    if (tests) tests.classList.toggle("compact", "compact" in tests.dataset && chosen.cases.size === boxes("cases").length);
    if (tests) tests.hidden = ![...tests.querySelectorAll("dt[data-case]")].some((one) => chosen.cases.has(one.dataset.case));
    const shown = `${form.elements.show.value}/${form.elements.of.value}`;
    const label = form.querySelector("input[name=show]:checked + span").textContent;
    for (const one of document.querySelectorAll("[data-shown]")) one.textContent = `${form.elements.of.value} ${label}`;
    later(shown, chosen);
  }

  // The rows on the screen first, all others when there is time. Asking for boxes instead would lay the page out twice.
  const seen = new Set();
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) seen[entry.isIntersecting ? "add" : "delete"](entry.target);
  });
  for (const { section } of matrices) for (const one of [section, ...section.querySelectorAll("tr[data-server]")]) watch.observe(one);

  let turn = 0;
  function later(shown, chosen) {
    const mine = ++turn;
    const waiting = [...matrices];
    // Before the browser has told what is on the screen, it is the first one: a deep link shows no other number before.
    if (mine === 1 && !seen.size && waiting.length) draw(waiting.shift(), shown, chosen, () => true);
    for (const matrix of matrices) if (seen.has(matrix.section)) draw(matrix, shown, chosen, (row) => seen.has(row));
    inTurn(waiting, mine, (matrix) => {
      draw(matrix, shown, chosen, () => true);
      ahead(matrix.section);
    });
  }

  // What the style sheet skips while it is far from the screen is laid out when there is time: it comes into view at once.
  // What is on the screen would blink.
  function ahead(section) {
    if (seen.has(section)) return;
    section.style.contentVisibility = "visible";
    section.getBoundingClientRect();
    section.style.contentVisibility = "";
  }

  addEventListener("load", () => inTurn([...matrices], 0, (matrix) => ahead(matrix.section)));

  // One after the other when there is time, until a later turn begins: a change does it for all.
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
    matrix.clients = [...table.tHead.rows[0].querySelectorAll("th[data-client]")].map((cell) => cell.dataset.client);
    matrix.rows = [...table.tBodies[0].rows].map((row) => ({
      row,
      shown: `${form.querySelector("input[name=show]").value}/median`,
      server: row.dataset.server,
      cells: [...row.cells].slice(1, -1).map(texts),
      mean: row.cells[row.cells.length - 1],
    }));
    matrix.foot = [...table.tFoot.rows[0].cells].slice(1);
  }

  // The texts of a cell that change; null of one without a number.
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
    const width = matrix.clients.length;
    const columns = matrix.clients.map(() => new Map());
    const every = new Map();
    matrix.rows.forEach((row, y) => {
      const inRow = new Map();
      const stale = row.shown !== shown && wanted(row.row);
      row.cells.forEach((cell, x) => {
        const at = y * width + x;
        const label = matrix.numbers.labels[at];
        if (label === null) return;
        if (stale) print(cell, metric, values[at], second, seconds[at]);
        if (values[at] === null || !chosen.servers.has(row.server) || !chosen.clients.has(matrix.clients[x])) return;
        for (const group of [inRow, every, columns[x]]) {
          const known = group.get(label) || { sum: 0, count: 0 };
          group.set(label, { sum: known.sum + values[at], count: known.count + 1 });
        }
      });
      if (stale) row.shown = shown;
      mean(row.mean, metric, inRow);
    });
    columns.forEach((column, x) => mean(matrix.foot[x], metric, column));
    mean(matrix.foot[width], metric, every);
  }

  // A text that stays is not touched: the browser would lay it out again.
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
