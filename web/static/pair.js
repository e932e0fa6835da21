// The interactive plots of a pair. Series of single iterations are scripts beside the page, loaded when first shown.
"use strict";
const bentpipe = (() => {
  const cell = JSON.parse(document.getElementById("cell").textContent);
  const plot = document.getElementById("plot");
  const loaded = new Map();
  const waiting = new Map();
  const marks = { first_server_1rtt: "first 1-RTT", handshake_confirmed: "handshake", ttfb: "TTFB", ttlb: "TTLB" };

  const limits = ["handshake", "receive-window", "congestion-window", "pacing", "link", "application", "outage", "recovery", "unknown"];

  // An upload is plotted like a download whose client and server, forward and return links have changed places.
  const exchanged = { client: "server", server: "client", forward: "return", return: "forward" };
  const told = (text) => (cell.upload ? text.replace(/\b(client|server|forward|return)\b/g, (word) => exchanged[word]) : text);

  // delta-coded list → values
  function summed(list) {
    let sum = 0;
    return list.map((step) => (sum += step));
  }

  // the colour of a custom property in the current theme
  function colours(...names) {
    const probe = document.body.appendChild(document.createElement("i"));
    const values = {};
    for (const name of names) {
      probe.style.color = `var(--${name})`;
      values[name] = getComputedStyle(probe).color;
    }
    probe.remove();
    return values;
  }

  function sizeUnit(size) {
    if (size >= 2 ** 20) return ["MiB", 2 ** 20];
    return size >= 2 ** 10 ? ["KiB", 2 ** 10] : ["B", 1];
  }

  // Frames as steps, one line per stream: each frame rises by its length at its time. The line has a gap when the next
  // frame of the stream doesn't continue the last one.
  function steps(vantage, unit, files) {
    const time = summed(vantage.t_us);
    const offset = summed(vantage.offset);
    const begins = [0, ...summed(files)];
    const lanes = new Map();
    let stream = 0;
    for (let i = 0; i < time.length; i++) {
      if (vantage.kind[i]) continue;
      while (stream < files.length - 1 && offset[i] >= begins[stream + 1]) stream++;
      while (stream > 0 && offset[i] < begins[stream]) stream--;
      if (!lanes.has(stream)) lanes.set(stream, { x: [], y: [], end: null });
      const lane = lanes.get(stream);
      const at = time[i] / 1e6;
      if (lane.end !== null && lane.end !== offset[i]) {
        lane.x.push(at);
        lane.y.push(null);
      }
      lane.end = offset[i] + vantage.length[i];
      lane.x.push(at, at);
      lane.y.push(offset[i] / unit, lane.end / unit);
    }
    const all = [...lanes.values()];
    return { x: all.flatMap((lane) => [...lane.x, lane.x[lane.x.length - 1]]), y: all.flatMap((lane) => [...lane.y, null]) };
  }

  function points(vantage, kind, unit) {
    const time = summed(vantage.t_us);
    const offset = summed(vantage.offset);
    const x = [];
    const y = [];
    for (let i = 0; i < time.length; i++) {
      if (vantage.kind[i] !== kind) continue;
      x.push(time[i] / 1e6);
      y.push(offset[i] / unit);
    }
    return { x, y };
  }

  function line(name, data, colour, more = {}) {
    return { type: "scatter", mode: "lines", name, ...data, line: { color: colour, width: 1.6, ...more.line }, ...more.trace };
  }

  function dots(name, data, colour, symbol, hover) {
    const crowded = data.x.length > 1500;
    return {
      type: "scatter",
      mode: "markers",
      name: `${name} (${data.x.length.toLocaleString("en-US")})`,
      ...data,
      visible: data.x.length ? true : "legendonly",
      marker: { color: colour, symbol, size: crowded ? 3 : symbol === "line-ns" ? 8 : 5, line: { color: colour, width: crowded ? 0.8 : 1.2 } },
      hovertemplate: `%{x:.4f} s, %{y:.3f}<extra>${hover}</extra>`,
    };
  }

  function offsetTraces(series, iteration, colour, name, unit) {
    const hover = (vantage) => ({ hovertemplate: `%{x:.4f} s, %{y:.3f} ${name}<extra>${vantage}</extra>` });
    const traces = [];
    let first = true;
    for (const curve of cell.curves) {
      if (curve.iteration === iteration) continue;
      const label = `iteration ${curve.iteration}${curve.succeeded ? "" : ", did not succeed"}`;
      traces.push(
        line("other iterations", { x: summed(curve.t_us).map((at) => at / 1e6), y: summed(curve.bytes).map((size) => size / unit) }, colour.other, {
          line: { width: 1, shape: "hv", dash: curve.succeeded ? "solid" : "dot" },
          trace: { legendgroup: "others", showlegend: first, hovertemplate: `%{x:.3f} s, %{y:.3f} ${name}<extra>${label}</extra>` },
        }),
      );
      first = false;
    }
    const bound = (list) => ({ x: list.map((point) => point[0]), y: list.map((point) => point[1] / unit) });
    traces.push(line("ideal", bound(series.bounds.ideal), colour.ideal, { line: { dash: "dash", width: 1.3 }, trace: hover("ideal") }));
    traces.push(
      line("slow-start bound", bound(series.bounds.slow_start), colour["slow-start"], { line: { dash: "dot", width: 1.8 }, trace: hover("slow-start bound") }),
    );
    traces.push(line("sent, server side", steps(series.server, unit, series.files), colour.server, { trace: hover("server side") }));
    traces.push(line("received, client side", steps(series.client, unit, series.files), colour.client, { line: { width: 2 }, trace: hover("client side") }));
    const lost = { x: summed(series.lost.t_us).map((at) => at / 1e6), y: summed(series.lost.offset).map((at) => at / unit) };
    traces.push(dots("frames lost", lost, colour.lost, "x-thin", "lost: sent, never seen at the client"));
    traces.push(dots("retransmission", points(series.server, 1, unit), colour.again, "line-ns", "retransmission, server side"));
    traces.push(dots("spurious", points(series.server, 2, unit), colour.spurious, "diamond-open", "spurious retransmission: the first copy had arrived"));
    traces.push(dots("retransm. received", points(series.client, 1, unit), colour.again, "circle", "retransmission, client side"));
    return traces;
  }

  function rateTraces(series, colour) {
    const { interval_s: interval } = series.rate;
    const trace = (name, rates, tint, axis, more) => {
      const held = [...rates, ...rates.slice(-1)]; // each rate holds until the end of its bin
      const data = { x: held.map((_, index) => index * interval), y: held.map((rate) => rate / 1e6) };
      const hover = { yaxis: axis, hovertemplate: `from %{x:.2f} s: %{y:.3f} Mbit/s<extra>${name}</extra>` };
      return line(name, data, tint, { line: { shape: "hv", width: 1.3, ...more }, trace: hover });
    };
    return [
      trace("forward, IP bytes", series.rate.forward_raw, colour.client, "y2", {}),
      trace("forward, goodput", series.rate.forward_goodput, colour.server, "y2", { dash: "dot" }),
      trace("return, IP bytes", series.rate.return_raw, colour.again, "y3", {}),
    ];
  }

  // value, repetitions, value, … → values
  function repeated(list) {
    const values = [];
    for (let i = 0; i < list.length; i += 2) for (let left = list[i + 1]; left > 0; left--) values.push(list[i]);
    return values;
  }

  // bytes in flight and the client's flow control limit, RTT and queue, packet numbers and sizes
  function packetTraces(series, colour) {
    const { packets, in_flight: flight, rtt, queue } = series;
    const seconds = (list) => summed(list).map((at) => at / 1e6);
    const milliseconds = (list) => list.map((value) => value / 1e3);
    const moments = (list) => list.map((_, index) => index * flight.interval_s);
    const kib = (list) => list.map((value) => (value === null ? null : value / 1024));
    const time = seconds(packets.t_us);
    const number = summed(repeated(packets.number));
    const size = repeated(packets.length);
    const packet = { customdata: number.map((value, index) => [value, size[index]]), hovertemplate: "%{x:.4f} s: packet %{customdata[0]}, %{customdata[1]} B<extra>sent, server side</extra>" };
    const points = (name, data, tint, axis, hover) => ({
      type: "scatter", mode: "markers", name, ...data, yaxis: axis, marker: { color: tint, size: 3 }, hovertemplate: `%{x:.4f} s: %{y:.2f} ms<extra>${hover}</extra>`,
    });
    const traces = [
      line("in flight", { x: moments(flight.bytes), y: kib(flight.bytes) }, colour.server, { line: { width: 1.3 }, trace: { yaxis: "y5", hovertemplate: "%{x:.3f} s: %{y:.1f} KiB<extra>in flight, server side</extra>" } }),
      points("RTT", { x: seconds(rtt.t_us), y: milliseconds(rtt.us) }, colour.client, "y6", "packet to ACK, server side"),
      points("queueing delay", { x: seconds(queue.t_us), y: milliseconds(queue.us) }, colour.again, "y6", "additional delay, compared with the fastest packet"),
      line("packet number", { x: time, y: number }, colour.server, { line: { width: 1 }, trace: { yaxis: "y7", ...packet } }),
      line("packet size", { x: time, y: size }, colour.server, { line: { width: 0.8, shape: "hv" }, trace: { yaxis: "y8", ...packet } }),
    ];
    if (flight.congestion_window?.length) {
      const most = { x: moments(flight.congestion_window), y: kib(flight.congestion_window) };
      const hover = { yaxis: "y5", hovertemplate: "%{x:.3f} s: %{y:.1f} KiB<extra>congestion window in the server's qlog</extra>" };
      // drawn below the bytes in flight, and wider, because both are often equal
      traces.unshift(line("congestion window", most, colour["limit-congestion-window"], { line: { width: 3.5, shape: "hv" }, trace: hover }));
    }
    if (flight.ceiling.length) {
      const most = { x: moments(flight.ceiling), y: kib(flight.ceiling) };
      const hover = { yaxis: "y5", hovertemplate: "%{x:.3f} s: %{y:.1f} KiB<extra>limit of the client's flow control</extra>" };
      traces.push(line("receive window", most, colour["limit-receive-window"], { line: { width: 1.3, dash: "dash" }, trace: hover }));
    }
    return traces;
  }

  // the lane between the plots: the limits of the transfer below, the intervals of its diagnoses above
  function diagnosisTraces(series, colour) {
    const bars = new Map();
    for (const [start, end, limit] of series.limits || []) {
      if (!bars.has(limit)) bars.set(limit, { base: [], x: [], y: [], text: [] });
      const bar = bars.get(limit);
      bar.base.push(start);
      bar.x.push(end - start);
      bar.y.push(0.5);
      bar.text.push(`${start.toFixed(3)} to ${end.toFixed(3)} s`);
    }
    const traces = [...bars].map(([limit, { text, ...bar }]) => ({
      type: "bar", orientation: "h", name: `limit: ${limit}`, ...bar, customdata: text, width: 1, yaxis: "y4",
      marker: { color: colour[`limit-${limit.replaceAll(" ", "-")}`] },
      hovertemplate: `%{customdata}<extra>${limit}</extra>`,
    }));
    const known = series.diagnoses || [];
    if (known.length) {
      const wrap = (text) => text.replace(/(.{1,60})(\s|$)/g, "$1<br>");
      traces.push({
        type: "scatter", mode: "lines+markers", name: `diagnoses (${known.length})`, yaxis: "y4",
        x: known.flatMap(([start, end]) => [start, end, null]),
        y: known.flatMap(() => [1.5, 1.5, null]),
        customdata: known.flatMap(([, , code, sentence]) => Array(3).fill(`<b>${code}</b><br>${wrap(sentence)}`)),
        line: { color: colour.lost, width: 2 }, marker: { symbol: "line-ns", size: 8, line: { color: colour.lost, width: 2 } },
        hovertemplate: "%{customdata}<extra></extra>",
      });
    }
    return traces;
  }

  // `area`: height of all plots together in pixels, the unit for positions outside of them
  function annotations(series, colour, end, area, turn) {
    const shapes = [
      { type: "line", xref: "paper", x0: 0, x1: 1, yref: "y2", y0: series.bounds.forward_rate / 1e6, y1: series.bounds.forward_rate / 1e6, line: { color: colour.ideal, width: 1, dash: "dash" } },
    ];
    const labels = [];
    for (const [start, end] of series.diagnoses || []) {
      shapes.push({ type: "rect", layer: "below", xref: "x", x0: start, x1: end, yref: "y domain", y0: 0, y1: 1, fillcolor: colour.again, opacity: 0.07, line: { width: 0 } });
    }
    const known = Object.entries(marks).filter(([name]) => series.marks[name] !== null && series.marks[name] !== undefined);
    known.sort((one, other) => series.marks[one[0]] - series.marks[other[0]]);
    known.forEach(([name, label], index) => {
      const at = series.marks[name];
      const row = known.length - 1 - index;
      shapes.push({ type: "line", x0: at, x1: at, yref: "paper", y0: 0, y1: 1 + (14 * row + 8) / area, line: { color: colour.soft, width: 1, dash: "dot" } });
      labels.push({
        x: at, y: 1 + (14 * row + 9) / area, yref: "paper", showarrow: false, yanchor: "middle",
        xanchor: at > turn ? "right" : "left", xshift: at > turn ? -4 : 4,
        text: `${label} ${at < 10 ? at.toFixed(3) : at.toFixed(2)} s`, font: { size: 11, color: colour.ink },
      });
    });
    return { shapes, annotations: labels };
  }

  // From the top: axis, relative height, title. Series of older runs have no packets.
  function panels(series, name) {
    const first = [["yaxis", 5.6, `offset (${name})`], ["yaxis4", 0.4], ["yaxis2", 2, told("forward<br>(Mbit/s)")], ["yaxis3", 1.4, told("return<br>(Mbit/s)")]];
    if (!series.packets) return first;
    return [...first, ["yaxis5", 2, "in flight<br>(KiB)"], ["yaxis6", 2, "RTT, queue<br>(ms)"], ["yaxis7", 1.7, "packet<br>number"], ["yaxis8", 1.4, "packet<br>size (B)"]];
  }

  const isNarrow = () => plot.clientWidth < 640;

  // an entry of the legend in two lines, when two columns have no room for one line
  function broken(name) {
    return name.length > 17 ? name.replace(/^(.{1,17}) /, "$1<br>") : name;
  }

  function layout(series, colour, name, end) {
    const axis = { gridcolor: colour.line, linecolor: colour.line, zerolinecolor: colour.line, ticks: "outside", tickcolor: colour.line, automargin: true };
    const narrow = isNarrow();
    const shown = panels(series, name);
    const margin = { l: 58, r: 12, t: 84, b: (narrow ? 190 : 110) + (series.packets ? (narrow ? 60 : 25) : 0) };
    const small = { size: narrow ? 9 : 11 };
    const area = plot.clientHeight - margin.t - margin.b;
    const gap = 22 / area;
    const whole = shown.reduce((sum, [, height]) => sum + height, 0);
    const axes = {};
    let top = 1;
    for (const [key, height, title] of shown) {
      const bottom = Math.max(0, top - (height / whole) * (1 - gap * (shown.length - 1)));
      axes[key] = title ? { ...axis, nticks: Math.round(2 + height), title: { text: title, font: key === "yaxis" ? undefined : small }, domain: [bottom, top], rangemode: "tozero" } : { domain: [bottom, top], range: [0, 2], visible: false, fixedrange: true };
      top = Math.max(0, bottom - gap);
    }
    delete axes.yaxis.nticks;
    if (series.packets) {
      // a window far above the bytes in flight would press their curve to the bottom
      const most = Math.max(1, ...series.in_flight.bytes);
      const windows = [...series.in_flight.ceiling, ...(series.in_flight.congestion_window || [])];
      const near = windows.filter((bytes) => bytes !== null && bytes < 2.5 * most);
      axes.yaxis5.range = [0, (1.1 * Math.max(most, ...near)) / 1024];
    }
    const last = shown[shown.length - 1][0].replace("axis", "");
    return {
      paper_bgcolor: "transparent",
      plot_bgcolor: "transparent",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colour.soft },
      margin,
      barmode: "overlay",
      modebar: { bgcolor: "transparent", color: colour.soft, activecolor: colour.ink },
      hovermode: "closest",
      hoverlabel: { bgcolor: colour.raised, bordercolor: colour.line, font: { color: colour.ink } },
      legend: { orientation: "h", y: -54 / area, yanchor: "top", x: 0, font: { color: colour.ink, size: narrow ? 9 : 12 }, entrywidthmode: "fraction", entrywidth: narrow ? 0.48 : 0.19 },
      xaxis: { ...axis, title: { text: narrow ? "time (s)" : "time since the client's first packet (s)" }, range: [0, end], anchor: last },
      ...axes,
      ...annotations(series, colour, end, area, end * (narrow ? 0.6 : 0.85)),
    };
  }

  function draw(iteration) {
    const series = loaded.get(iteration);
    const colour = colours("ink", "soft", "line", "raised", "client", "server", "again", "spurious", "lost", "other", "ideal", "slow-start", ...limits.map((name) => `limit-${name}`));
    if (cell.upload) [colour.client, colour.server] = [colour.server, colour.client];
    const [name, unit] = sizeUnit(series.file_size);
    const ends = cell.curves.map((curve) => curve.t_us.reduce((sum, step) => sum + step, 0) / 1e6);
    const own = [series.client, series.server].map((vantage) => vantage.t_us.reduce((sum, step) => sum + step, 0) / 1e6);
    const end = 1.02 * Math.max(...ends, ...own, series.marks.ttlb || 0);
    if (!plot.classList.contains("drawn")) {
      plot.replaceChildren();
      plot.classList.add("drawn");
    }
    plot.classList.toggle("deep", Boolean(series.packets));
    const traces = [...offsetTraces(series, iteration, colour, name, unit), ...rateTraces(series, colour), ...diagnosisTraces(series, colour)];
    if (series.packets) traces.push(...packetTraces(series, colour));
    for (const trace of traces) {
      trace.name &&= told(trace.name);
      trace.hovertemplate &&= told(trace.hovertemplate);
      if (isNarrow()) trace.name &&= broken(trace.name);
    }
    const file = `${document.title.split(" ·")[0].replace(/[^\w.-]+/g, "_")}_${iteration}`;
    Plotly.react(plot, traces, layout(series, colour, name, end), {
      responsive: true,
      displaylogo: false,
      toImageButtonOptions: { format: "svg", filename: file },
      modeBarButtons: [["toImage"], ["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]],
    });
    point(end);
    const unknown = series.in_flight?.congestion_window?.length === 0; // undefined in series of older runs
    document.getElementById("window").textContent = unknown ? told("No qlog of this server has its congestion window. ") : "";
    document.getElementById("shown").textContent = `${iteration}${iteration === cell.median ? " (median)" : ""}`;
  }

  function load(iteration) {
    if (loaded.has(iteration)) return Promise.resolve();
    return new Promise((resolve, reject) => {
      waiting.set(iteration, resolve);
      const script = document.createElement("script");
      script.src = `${encodeURIComponent(cell.case)}/${iteration}/series.js`;
      script.onerror = () => reject(new Error(`${script.src} is missing`));
      document.head.append(script);
    });
  }

  // the state in the address: #iteration=2&at=0.031
  function asked() {
    return new URLSearchParams(location.hash.slice(1));
  }

  // zooms the plots to the time of a finding's packet
  function point(end) {
    const at = parseFloat(asked().get("at"));
    if (!Number.isFinite(at)) return;
    const around = Math.max(end / 20, 0.005);
    const mark = { type: "line", x0: at, x1: at, yref: "paper", y0: 0, y1: 1, line: { color: colours("again").again, width: 2 } };
    Plotly.relayout(plot, { "xaxis.range": [Math.max(at, 0) - around, Math.max(at, 0) + around], shapes: [...plot.layout.shapes, mark] });
  }

  let current = null;
  async function show(iteration) {
    current = iteration;
    await load(iteration);
    if (current === iteration) draw(iteration);
  }

  function wanted() {
    const iteration = Number(asked().get("iteration"));
    return cell.curves.some((curve) => curve.iteration === iteration) ? iteration : cell.shown;
  }

  function select(iteration) {
    const radio = document.querySelector(`input[name="iteration"][value="${iteration}"]`);
    if (radio) radio.checked = true;
    show(iteration);
  }

  addEventListener("DOMContentLoaded", () => {
    for (const radio of document.querySelectorAll('input[name="iteration"]')) {
      radio.addEventListener("change", () => {
        history.replaceState(null, "", `#iteration=${radio.value}`);
        show(Number(radio.value));
      });
    }
    for (const link of document.querySelectorAll("a[data-at]")) {
      link.addEventListener("click", (event) => {
        event.preventDefault();
        location.hash = `#iteration=${link.dataset.iteration}&at=${link.dataset.at}`;
      });
    }
    addEventListener("hashchange", () => {
      select(wanted());
      if (asked().has("at")) plot.scrollIntoView({ block: "nearest" });
    });
    document.addEventListener("themechange", () => loaded.has(current) && draw(current));
    select(wanted());
  });

  return {
    // called by <iteration>/series.js with JSON, compressed by zlib, as Base64
    async series(iteration, packed) {
      const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
      const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
      loaded.set(iteration, await new Response(unpacked).json());
      waiting.get(iteration)?.();
    },
  };
})();
