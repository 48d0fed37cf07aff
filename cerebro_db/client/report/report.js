
// Draws the report from the JSON block `contents`. Names in it are other people's: a text enters the page as a text
// node or on a canvas only.
(() => {
  "use strict";
  const contents = JSON.parse(document.getElementById("contents").textContent);
  const place = document.getElementById("report");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const COLOURS = 12; // --c0 to --c11 of the style
  const ROWS = 100; // of the leaderboard, before "Show all"

  // -- elements and texts ------------------------------------------------------------------------------------------

  function element(name, properties, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(properties || {})) {
      if (value === undefined || value === null || value === false) continue;
      if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
      else if (key === "class") made.className = value;
      else made.setAttribute(key, value === true ? "" : value);
    }
    made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
    return made;
  }
  // A text of others for a button: long ones are cut.
  const fitting = (text) => (text.length > 60 ? `${text.slice(0, 60)}…` : text);
  const foreign = (text) => element("span", { class: "text" }, text === null || text === undefined ? "–" : String(text));
  const WORDS = { stopped: "ended early" }; // of statuses
  const status = (name) => element("span", { class: `status ${name}` }, WORDS[name] || name);
  const isNumber = (value) => typeof value === "number" && isFinite(value);
  const styles = new Map();
  function style(name) {
    const key = `${name} ${dark.matches}`;
    if (!styles.has(key)) styles.set(key, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
    return styles.get(key);
  }
  const dot = (number) => element("span", { class: `dot c${number % COLOURS}` });

  // A loss or a metric; its digits are those of the terminal.
  function real(value) {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    if (!isNumber(value)) return String(value);
    if (size >= 999.5 && size < 1e9) return Math.round(value).toLocaleString("en");
    return (size >= 1e-3 && size < 100) || size === 0 ? value.toFixed(4) : String(Number(value.toPrecision(3)));
  }
  const short = (value) => (Number.isInteger(value) && Math.abs(value) < 1e15 ? value.toLocaleString("en") : real(value));
  // The whole number is in the title: the table shows four digits.
  const figure = (value, text) => element("td", { class: "number", title: value === null ? null : String(value), "data-value": value }, text || short(value));

  function duration(seconds) {
    if (!isNumber(seconds)) return "–";
    if (seconds < 59.95) return `${seconds.toFixed(1)} s`;
    const whole = Math.round(seconds), two = (number) => String(number).padStart(2, "0");
    const hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60;
    return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
  }
  const moment = (text) => (text ? new Date(text).toLocaleString("en-GB", { timeZoneName: "short" }) : "–");
  const named = (run) => `Run ${run.run}${run.name ? `: ${run.name}` : ""}`;
  const percent = (share) => `${(100 * (share || 0)).toFixed(1)} %`;

  function section(title, ...children) {
    const made = element("section", {}, element("h2", {}, title), children);
    made.id = title.toLowerCase().replace(/[^a-z]+/g, "-");
    made.setAttribute("aria-label", title);
    return made;
  }
  function table(headings, rows, properties) {
    const cells = headings.map((one) => element("th", { scope: "col", class: one.number ? "number" : null }, one.name || one));
    return element("div", { class: "scroll tall", tabindex: 0, role: "region", "aria-label": properties.label },
      element("table", { class: properties.class }, element("thead", {}, element("tr", {}, cells)), element("tbody", {}, rows)));
  }
  const button = (label, title, act) => element("button", { type: "button", title, "aria-label": title, onclick: act }, label);

  function zoomButtons(chart) {
    return element("div", { class: "controls" },
      button("+", "Zoom in", () => chart.zoom(0.5)), button("−", "Zoom out", () => chart.zoom(2)),
      button("◀", "Earlier", () => chart.pan(-0.25)), button("▶", "Later", () => chart.pan(0.25)),
      button("All", "Show all", () => chart.reset()),
      element("span", { class: "pale" }, "Drag to zoom. Keys: + − ← → 0"));
  }
  function zoomKeys(target, chart) {
    target.addEventListener("keydown", (event) => {
      const act = { "+": () => chart.zoom(0.5), "=": () => chart.zoom(0.5), "-": () => chart.zoom(2), "0": () => chart.reset(),
        ArrowLeft: () => chart.pan(-0.25), ArrowRight: () => chart.pan(0.25),
        ArrowUp: chart.step && (() => chart.step(-1)), ArrowDown: chart.step && (() => chart.step(1)) }[event.key];
      if (act && !event.ctrlKey && !event.metaKey && !event.altKey) { event.preventDefault(); act(); }
    });
  }

  // The part of a range that is shown.
  function view(first, last, changed) {
    const shown = { from: first, to: last };
    const set = (from, to) => {
      const size = Math.min(Math.max(to - from, (last - first) / 1e5), last - first);
      shown.from = Math.min(Math.max(from, first), last - size);
      shown.to = shown.from + size;
      changed();
    };
    return Object.assign(shown, {
      set,
      zoom: (factor) => { const middle = (shown.from + shown.to) / 2, half = ((shown.to - shown.from) / 2) * factor; set(middle - half, middle + half); },
      pan: (share) => { const by = (shown.to - shown.from) * share; set(shown.from + by, shown.to + by); },
      reset: () => set(first, last),
    });
  }

  // An empty canvas of this size. A new size costs more than to clear it.
  function cleared(canvas, width, height) {
    const ratio = devicePixelRatio || 1, wide = Math.round(width * ratio), high = Math.round(height * ratio), pen = canvas.getContext("2d");
    if (canvas.width !== wide || canvas.height !== high) {
      canvas.width = wide;
      canvas.height = high;
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    return pen;
  }

  // A canvas as wide as its place, drawn again when the width or the colours change. What is emphasised is on a second
  // one above it, because the first can take long.
  const drawn = new Set();
  function surface(host, height, draw, emphasise, least) {
    const canvas = element("canvas", { class: "surface" }), above = element("canvas", { class: "over" });
    host.append(element("div", { class: "chart" }, canvas, above));
    let width = 0;
    function paint(target, act) {
      if (!width) return;
      const pen = cleared(target, width, height);
      pen.font = `12px ${style("--font")}`;
      pen.save();
      act(pen, width, height);
      pen.restore();
    }
    const mark = () => paint(above, emphasise);
    const again = () => { paint(canvas, draw); mark(); };
    const watch = new ResizeObserver(() => {
      const now = Math.max(Math.floor(host.clientWidth), least || 0);
      if (now !== width) { width = now; again(); }
    });
    watch.observe(host);
    drawn.add(again);
    return { canvas, again, mark, end: () => { watch.disconnect(); drawn.delete(again); } };
  }

  function fitted(pen, text, room) {
    if (pen.measureText(text).width <= room) return text;
    let end = Math.min(text.length, 200);
    while (end > 1 && pen.measureText(text.slice(0, end) + "…").width > room) end -= 1;
    return text.slice(0, end) + "…";
  }

  // -- what is chosen ----------------------------------------------------------------------------------------------

  // The models that pass the filters, and the one that is emphasised, in all charts of a run.
  function choice(run) {
    const listeners = [], filters = new Map();
    const passing = (but) => new Set(run.leaderboard.filter((entry) => [...filters].every(([name, passes]) => name === but || passes(entry.model))).map((entry) => entry.model));
    const chosen = {
      shown: null, emphasised: null, pinned: null, passing,
      group: undefined, // null: the models on all rows; a number: those of a group; undefined: all models
      listen: (act) => listeners.push(act),
      filter: (name, passes) => {
        if (passes) filters.set(name, passes); else filters.delete(name);
        chosen.shown = passing();
        listeners.forEach((act) => act(true));
      },
      ofGroup: (group) => {
        const groups = new Map(run.leaderboard.map((entry) => [entry.model, entry.group_number]));
        chosen.group = group;
        chosen.filter("group", group === undefined ? null : (model) => groups.get(model) === group);
      },
      emphasise: (model) => { chosen.emphasised = model === null ? chosen.pinned : model; listeners.forEach((act) => act(false)); },
      pin: (model) => { chosen.pinned = chosen.pinned === model ? null : model; chosen.emphasised = chosen.pinned; listeners.forEach((act) => act(false)); },
    };
    chosen.shown = passing();
    if (run.groups.length) chosen.ofGroup(null);
    return chosen;
  }
  // The best models have colours: those on all rows, or those of the chosen group.
  function colouring(run, chosen) {
    const ranks = new Map(), groups = new Map(), sizes = new Map();
    for (const entry of run.leaderboard) {
      const place = sizes.get(entry.group_number) || 0;
      ranks.set(entry.model, place);
      groups.set(entry.model, entry.group_number);
      sizes.set(entry.group_number, place + 1);
    }
    return {
      number: (model) => (ranks.get(model) || 0) % COLOURS,
      of: (model) => style(`--c${(ranks.get(model) || 0) % COLOURS}`),
      isTop: (model) => groups.get(model) === (chosen.group ?? null) && ranks.get(model) < COLOURS,
      many: () => (sizes.get(chosen.group ?? null) || 0) > COLOURS || chosen.group === undefined && sizes.size > 1,
    };
  }
  const groupName = (entry) => (entry.group_value === null ? `group ${entry.group_number}` : `group ${entry.group_value}`);
  // Which epoch the result of a model is from, in words.
  function meaning(run) {
    const folds = run.leaderboard.some((entry) => entry.fold !== null) ? " The result of a configuration is the mean over its folds." : "";
    const rows = run.groups.length ? " These are the models on all rows." : "";
    return (run.keep === "best"
      ? `A model's result is its ${run.objective} in its best epoch, whose state the run keeps.`
      : `A model's result is its ${run.objective} in its last epoch, whose state the model table gets.`) + folds + rows;
  }
  const wordsOf = (run) => new Map(run.leaderboard.map((entry) => [entry.model, entry]));
  function about(entry) {
    if (!entry) return "";
    const fold = entry.fold === null ? "" : `, fold ${entry.fold}`;
    const group = entry.group_number === null ? "" : `, ${groupName(entry)}`;
    return `model ${entry.model} (configuration ${entry.configuration}${fold}${group}${entry.words ? `: ${entry.words}` : ""})`;
  }

  // -- lines over an axis ------------------------------------------------------------------------------------------

  // Axes and zoom are those of uPlot. The lines are drawn here: a series of uPlot costs much more than a line, and a
  // run may have thousands. `lines`: {key, xs, ys, colour, top}.
  function lineChart(host, options) {
    const readout = element("p", { class: "readout", "aria-live": "polite" }, options.hint);
    const target = element("div", { class: "chart", tabindex: 0, role: "img", "aria-label": options.label });
    let plot = null, shown = null, over = null, near = null;
    let first = Infinity, last = -Infinity;
    for (const xs of options.extent || options.lines().map((line) => line.xs)) for (const x of xs) { first = Math.min(first, x); last = Math.max(last, x); }
    if (options.fromZero) first = 0;
    const margin = (last - first || 1) * 0.015;
    first -= options.fromZero ? 0 : margin;
    last += margin;

    function rangeOfY() {
      let low = Infinity, high = -Infinity;
      for (const line of options.lines()) {
        if (!options.passes(line.key)) continue;
        for (let place = 0; place < line.xs.length; place += 1) {
          const y = line.ys[place], x = line.xs[place];
          if ((options.log() && y <= 0) || x < shown.from || x > shown.to) continue;
          if (y < low) low = y;
          if (y > high) high = y;
        }
      }
      if (low > high) return options.log() ? [0.1, 1] : [0, 1];
      if (options.log()) return [low / 1.1, high * 1.1];
      const room = (high - low || Math.abs(high) || 1) * 0.05;
      return [low - room, high + room];
    }
    function trace(pen, line, scale, left, top) {
      let before = null;
      pen.beginPath();
      for (let place = 0; place < line.xs.length; place += 1) {
        const value = line.ys[place];
        if (options.log() && value <= 0) { before = null; continue; }
        const x = left + plot.valToPos(line.xs[place], "x") * scale, y = top + plot.valToPos(value, "y") * scale;
        if (before === null) pen.moveTo(x, y);
        else { if (options.steps) pen.lineTo(x, before); pen.lineTo(x, y); }
        before = y;
      }
      pen.stroke();
    }
    function dots(pen, line, scale, left, top, size) {
      for (let place = 0; place < line.xs.length; place += 1) {
        const value = line.ys[place];
        if (options.log() && value <= 0) continue;
        pen.beginPath();
        pen.arc(left + plot.valToPos(line.xs[place], "x") * scale, top + plot.valToPos(value, "y") * scale, size * scale, 0, 7);
        pen.fill();
      }
    }
    function drawLines(u) {
      const pen = u.ctx, scale = devicePixelRatio || 1, box = u.bbox;
      const lines = options.lines().filter((line) => options.passes(line.key));
      const grey = style("--grey-line"), tops = lines.map((line) => line.top());
      pen.save();
      pen.beginPath();
      pen.rect(box.left, box.top, box.width, box.height);
      pen.clip();
      pen.lineJoin = "round";
      for (const top of [false, true]) {
        for (let place = lines.length - 1; place >= 0; place -= 1) {
          const line = lines[place];
          if (tops[place] !== top) continue;
          pen.strokeStyle = pen.fillStyle = top ? line.colour() : grey;
          pen.lineWidth = (top ? 2 : 1) * scale;
          trace(pen, line, scale, box.left, box.top);
          if (line.xs.length < 30 && lines.length < 40) dots(pen, line, scale, box.left, box.top, 2.5);
        }
      }
      pen.restore();
      emphasis();
    }
    function emphasis() {
      if (!plot || !over) return;
      const pen = cleared(over, plot.over.clientWidth, plot.over.clientHeight);
      const key = options.emphasised(), line = key === null ? null : options.lines().find((one) => one.key === key);
      if (!line) return;
      pen.strokeStyle = style("--ground");
      pen.lineWidth = 7;
      pen.lineJoin = "round";
      trace(pen, line, 1, 0, 0);
      pen.strokeStyle = pen.fillStyle = line.colour();
      pen.lineWidth = 3.5;
      trace(pen, line, 1, 0, 0);
      if (near && near.key === key) {
        pen.beginPath();
        pen.arc(plot.valToPos(near.x, "x"), plot.valToPos(near.y, "y"), 5, 0, 7);
        pen.fill();
      }
    }
    // The value that is nearest to the pointer, measured in pixels.
    function nearest(left, top) {
      const wanted = plot.posToVal(left, "x");
      let best = null, distance = 40 * 40;
      for (const line of options.lines()) {
        if (!options.passes(line.key) || !line.xs.length) continue;
        let low = 0, high = line.xs.length - 1;
        while (high - low > 1) { const middle = (low + high) >> 1; if (line.xs[middle] > wanted) high = middle; else low = middle; }
        for (const at of [low, high]) {
          const x = line.xs[at], y = line.ys[at];
          if (options.log() && y <= 0) continue;
          const dx = plot.valToPos(x, "x") - left, dy = plot.valToPos(y, "y") - top, far = dx * dx + dy * dy;
          if (far < distance) { distance = far; best = { key: line.key, x, y }; }
        }
      }
      return best;
    }
    function make(width) {
      if (plot) plot.destroy();
      const ink = () => style("--pale"), grid = { stroke: () => style("--line"), width: 1 }, font = `12px ${style("--font")}`;
      const axis = { stroke: ink, grid, ticks: grid, font, labelFont: font, labelSize: 18 };
      plot = new uPlot({
        width, height: options.height || 340, padding: [10, 14, 0, 0], legend: { show: false }, pxAlign: false,
        scales: { x: { time: false, range: () => [shown.from, shown.to] }, y: { distr: options.log() ? 3 : 1, range: rangeOfY } },
        series: [{}, { paths: () => null, points: { show: false } }],
        axes: [
          { ...axis, label: options.xLabel, size: 36, incrs: options.whole ? [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000, 10000] : undefined, values: (u, marks) => marks.map((one) => (options.xText ? options.xText(one) : String(one))) },
          { ...axis, label: options.yLabel(), size: 66, values: (u, marks) => marks.map((one) => (one === null ? "" : String(Number(one.toPrecision(6))))) },
        ],
        cursor: { points: { show: false }, drag: { x: true, y: false, setScale: false }, bind: { dblclick: () => () => { shown.reset(); } } },
        hooks: {
          draw: [drawLines],
          setSelect: [(u) => {
            const { left, width: wide } = u.select;
            if (wide < 4) return;
            u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
            shown.set(u.posToVal(left, "x"), u.posToVal(left + wide, "x"));
          }],
          setCursor: [(u) => {
            if (u.cursor.left === null || u.cursor.left < 0) { if (near) { near = null; options.emphasise(null); readout.textContent = options.hint; } return; }
            const found = nearest(u.cursor.left, u.cursor.top);
            if ((found && found.key) === (near && near.key) && (found && found.x) === (near && near.x)) return;
            near = found;
            options.emphasise(found ? found.key : null);
            readout.textContent = found ? options.tell(found) : options.hint;
          }],
        },
      }, [[first, last], [0, 1]], target);
      over = element("canvas", { class: "over" });
      plot.over.append(over);
      emphasis();
    }
    const refresh = () => { if (plot) { plot.setData(plot.data); } };
    shown = view(first, last, refresh);
    const remake = () => { if (target.clientWidth) make(target.clientWidth); };
    let width = 0;
    const watch = new ResizeObserver(() => { if (target.clientWidth !== width) { width = target.clientWidth; remake(); } });
    watch.observe(target);
    drawn.add(remake);
    const chart = {
      refresh, remake, emphasis,
      zoom: (factor) => shown.zoom(factor), pan: (share) => shown.pan(share), reset: () => shown.reset(),
      step: options.step, tell: (text) => { readout.textContent = text; },
      end: () => { watch.disconnect(); drawn.delete(remake); if (plot) plot.destroy(); },
    };
    zoomKeys(target, chart);
    host.append(zoomButtons(chart), target, readout);
    return chart;
  }

  // -- the parts of a run ------------------------------------------------------------------------------------------

  function learningCurves(run, chosen, colour, ends) {
    const wanted = run.objective_curve, filled = run.curves;
    if (!filled.length) return section("Learning curves", element("p", {}, "No epoch has ended yet, so there are no curves."));
    const entries = wordsOf(run);
    const long = (one) => one.curves.some((curve) => curve.epochs.length > 1); // some runs evaluate once, at the end
    let metric = [filled.find((one) => one.name === wanted), ...filled].find((one) => one && long(one)) || filled[0];
    let log = false, lines = [];
    const take = () => {
      let low = Infinity, high = -Infinity;
      lines = metric.curves.map(({ model, epochs, values }) => {
        for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }
        return { key: model, xs: epochs, ys: values, colour: () => colour.of(model), top: () => colour.isTop(model) };
      });
      log = metric.name.endsWith("loss") && low > 0 && high / low > 50;
    };
    take();
    const logBox = element("input", { type: "checkbox", onchange: () => { log = logBox.checked; chart.remake(); } });
    logBox.checked = log;
    const select = element("select", { onchange: () => { metric = filled[select.selectedIndex]; take(); logBox.checked = log; chart.remake(); } },
      filled.map((one) => element("option", {}, one.name)));
    select.selectedIndex = filled.indexOf(metric);
    const host = element("div", {});
    const order = run.leaderboard.map((entry) => entry.model);
    const last = (model) => { const line = lines.find((one) => one.key === model); return line && { key: model, x: line.xs.at(-1), y: line.ys.at(-1) }; };
    const tell = (found) => `${about(entries.get(found.key))}: ${metric.name} ${real(found.y)} in epoch ${found.x}`;
    const chart = lineChart(host, {
      label: `Learning curves of ${lines.length} models. The leaderboard has the numbers.`,
      hint: "Point at a curve, or use the keys ↑ and ↓, to see its values.",
      extent: filled.flatMap((one) => one.curves.map((curve) => curve.epochs)),
      lines: () => lines, passes: (model) => chosen.shown.has(model), log: () => log, xLabel: "epoch", yLabel: () => metric.name, whole: true,
      emphasised: () => chosen.emphasised, emphasise: chosen.emphasise, tell,
      step: (by) => {
        const among = order.filter((model) => chosen.shown.has(model) && last(model));
        if (!among.length) return;
        const at = among.indexOf(chosen.emphasised);
        const model = among[at < 0 ? 0 : Math.min(Math.max(at + by, 0), among.length - 1)];
        chosen.emphasise(model);
        chart.tell(tell(last(model)));
      },
    });
    ends.push(chart.end);
    chosen.listen((filtered) => (filtered ? chart.refresh() : chart.emphasis()));
    const grey = element("p", { class: "pale" });
    const tellColours = () => {
      const whose = !run.groups.length ? "" : isNumber(chosen.group) ? " of the group" : " on all rows";
      grey.textContent = colour.many() ? `The ${COLOURS} best models${whose} have colours, all others are grey.` : "";
    };
    tellColours();
    chosen.listen(tellColours);
    return section("Learning curves",
      element("div", { class: "controls" }, element("label", {}, "Metric", select), element("label", {}, logBox, "Logarithmic")),
      host, grey);
  }

  function bestAgainstTime(runs, ends, title) {
    const lines = runs.map((run, place) => {
      const xs = run.best.map((one) => one.seconds), ys = run.best.map((one) => one.value);
      const ending = run.progress.seconds_elapsed;
      if (xs.length && isNumber(ending) && ending > xs.at(-1)) { xs.push(ending); ys.push(ys.at(-1)); }
      return { key: place, xs, ys, colour: () => style(`--c${place % COLOURS}`), top: () => true };
    }).filter((line) => line.xs.length);
    if (!lines.length) return section(title, element("p", {}, "No model has a value of the objective yet."));
    const all = lines.flatMap((line) => line.ys), log = runs[0].objective.endsWith("loss") && Math.min(...all) > 0 && Math.max(...all) / Math.min(...all) > 50;
    let emphasised = null;
    const host = element("div", {});
    const chart = lineChart(host, {
      label: `Best ${runs[0].objective} against the time since the start`, hint: "Point at the line to see which model was the best.",
      lines: () => lines, passes: () => true, log: () => log, xLabel: "time since the start", yLabel: () => `best ${runs[0].objective}`, steps: true, fromZero: true, height: 260,
      xText: (seconds) => duration(seconds), emphasised: () => emphasised, emphasise: (key) => { emphasised = key; chart.emphasis(); },
      tell: (found) => {
        const run = runs[found.key], one = run.best.findLast((point) => point.seconds <= found.x);
        const whose = runs.length > 1 ? `run ${run.run}, ` : "";
        return `${whose}after ${duration(found.x)}: ${real(found.y)} by ${about(wordsOf(run).get(one.model))} in epoch ${one.epoch}`;
      },
    });
    ends.push(chart.end);
    const legend = runs.length > 1 ? element("p", {}, runs.map((run, place) => element("span", { class: "text" }, dot(place), ` ${named(run)}   `))) : null;
    const falls = runs.some((run) => run.keep !== "best") ? " The line also changes for the worse, when the best model does." : "";
    return section(title, legend, host, element("p", { class: "pale" }, `The result of the best model at each moment. ${runs.length > 1 ? "" : meaning(runs[0])}${falls}`));
  }

  function leaderboard(run, chosen, colour) {
    const entries = run.leaderboard.map((entry, place) => ({ ...entry, place, group: entry.group_number === null ? null : entry.group_value ?? String(entry.group_number) }));
    if (!entries.length) return section("Leaderboard", element("p", {}, "The run has no models yet."));
    const has = (name) => entries.some((entry) => entry[name] !== null && entry[name] !== undefined);
    const columns = [
      { key: "rank", name: "#", number: true },
      { key: "model", name: "model" },
      { key: "group", name: "group", optional: true },
      { key: "objective_value", name: run.objective, number: true, real: true },
      { key: "validation_rmse", name: "RMSE", number: true, real: true, optional: true },
      { key: "spread", name: "±", number: true, real: true, optional: true },
      { key: "configuration", name: "conf.", number: true },
      { key: "words", name: "configuration" },
      { key: "fold", name: "fold", number: true, optional: true },
      { key: "best_value", name: "best value", number: true, real: true, optional: true },
      { key: "best_epoch", name: "best epoch", number: true, optional: true },
      { key: "epochs_done", name: "epochs", number: true },
      { key: "validation_loss", name: "validation loss", number: true, real: true, optional: true, hide: run.objective === "val_loss" },
      { key: "training_loss", name: "training loss", number: true, real: true, optional: true, hide: run.objective === "loss" },
      { key: "validation_metric", name: `validation ${run.metric_name || "metric"}`, number: true, real: true, optional: true, hide: run.objective === `val_${run.metric_name}` },
      { key: "training_metric", name: `training ${run.metric_name || "metric"}`, number: true, real: true, optional: true },
      { key: "status", name: "status" },
      { key: "rung", name: "rung", number: true, optional: true },
      { key: "parent", name: "parent", number: true, optional: true },
      { key: "weights", name: "weights", number: true, optional: true },
      { key: "engine", name: "engine", optional: true },
    ].filter((column) => !column.hide && (!column.optional || has(column.key)));
    let sorted = { key: "rank", down: false }, all = false;
    const body = element("tbody", {}), count = element("span", { class: "pale", "aria-live": "polite" });
    const more = button("Show all", "Show all rows", () => { all = true; fill(); });
    const heads = columns.map((column) => {
      const sort = button(column.name, `Sort by ${column.name}`, () => {
        sorted = { key: column.key, down: sorted.key === column.key ? !sorted.down : false };
        fill();
      });
      return element("th", { scope: "col", class: column.number ? "number" : null }, sort);
    });
    const bodies = new Map();
    function row(entry) {
      if (bodies.has(entry.model)) return bodies.get(entry.model);
      const cells = columns.map((column) => {
        const value = entry[column.key];
        if (column.key === "status") return element("td", {}, status(value));
        if (column.key === "words") return element("td", { class: "long" }, foreign(value || "–"));
        if (column.key === "model") {
          const mark = element("button", { type: "button", class: "mark", "aria-pressed": "false", title: `Show model ${value} in the charts`, onclick: () => chosen.pin(entry.model) }, dot(colour.number(entry.model)), String(value));
          return element("td", {}, mark);
        }
        return column.number ? figure(value, column.real && real(value)) : element("td", {}, foreign(value));
      });
      const made = element("tr", { "data-model": entry.model, onmouseenter: () => chosen.emphasise(entry.model), onmouseleave: () => chosen.emphasise(null) }, cells);
      bodies.set(entry.model, made);
      return made;
    }
    function fill() {
      const shown = entries.filter((entry) => chosen.shown.has(entry.model));
      const { key, down } = sorted;
      const missing = (value) => value === null || value === undefined || (columns.find((one) => one.key === key).number && !isNumber(value));
      shown.sort((one, other) => {
        const a = one[key], b = other[key];
        if (missing(a) || missing(b)) return missing(a) - missing(b) || one.place - other.place;
        const order = typeof a === "string" || typeof b === "string" ? String(a).localeCompare(String(b), "en", { numeric: true }) : a - b;
        return (down ? -order : order) || one.place - other.place;
      });
      columns.forEach((column, place) => heads[place].setAttribute("aria-sort", column.key !== key ? "none" : down ? "descending" : "ascending"));
      columns.forEach((column, place) => { heads[place].firstChild.textContent = column.name + (column.key === key ? (down ? " ▼" : " ▲") : ""); });
      const fits = all ? shown : shown.slice(0, ROWS);
      body.replaceChildren(...fits.map(row));
      more.hidden = fits.length === shown.length;
      count.textContent = `${fits.length.toLocaleString("en")} of ${entries.length.toLocaleString("en")} models`;
      mark();
    }
    let before = { emphasised: null, pinned: null };
    function mark() {
      const row = (model) => bodies.get(model), pressed = (made, on) => made && made.querySelector("button.mark").setAttribute("aria-pressed", String(on));
      if (row(before.emphasised)) row(before.emphasised).classList.remove("chosen");
      pressed(row(before.pinned), false);
      before = { emphasised: chosen.emphasised, pinned: chosen.pinned };
      if (row(before.emphasised)) row(before.emphasised).classList.add("chosen");
      pressed(row(before.pinned), true);
    }
    const states = [...new Set(entries.map((entry) => entry.status))];
    const search = element("input", { type: "search", placeholder: "such as Adam units=64", oninput: () => apply() });
    const state = element("select", { onchange: () => apply() }, element("option", { value: "" }, "all"), states.map((one) => element("option", { value: one }, WORDS[one] || one)));
    const texts = new Map(entries.map((entry) => [entry.model, columns.map((column) => (entry[column.key] === null ? "" : String(entry[column.key]))).concat(entry.reason || "", WORDS[entry.status] || "").join(" ").toLowerCase()]));
    function apply() {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      const by = new Map(entries.map((entry) => [entry.model, entry.status]));
      const any = words.length || state.value;
      chosen.filter("leaderboard", any ? (model) => (!state.value || by.get(model) === state.value) && words.every((word) => texts.get(model).includes(word)) : null);
    }
    // The models on all rows, those of one group, or all.
    const whose = [[null, "on all rows"], [undefined, "all"], ...run.groups.map((one) => [one.group_number, groupName(one)])];
    const models = element("select", { onchange: () => chosen.ofGroup(whose[models.selectedIndex][0]) }, whose.map(([, name]) => element("option", {}, name)));
    chosen.listen((filtered) => {
      if (filtered) { models.selectedIndex = whose.findIndex(([group]) => group === chosen.group); fill(); } else mark();
    });
    fill();
    return section("Leaderboard",
      element("div", { class: "controls" }, element("label", { class: "grow" }, "Filter", search), element("label", {}, "Status", state),
        run.groups.length ? element("label", {}, "Models", models) : null, more, count),
      element("div", { class: "scroll tall", tabindex: 0, role: "region", "aria-label": "Leaderboard" },
        element("table", {}, element("thead", {}, element("tr", {}, heads)), body)),
      element("p", { class: "pale" }, "A filter holds for the charts, too. Point at a row, or press its model, to see it in them."));
  }

  // The best model of each group, compared with the best model on all rows on the rows of the group.
  function groupsOf(run, chosen) {
    if (!run.groups.length) return null;
    const title = "Best model of each group", entries = wordsOf(run), has = (name) => run.groups.some((one) => one[name] !== null);
    const byObjective = has("all_rows_objective_value"), whole = byObjective ? "all_rows_objective_value" : "all_rows_validation_loss";
    const own = byObjective || !has(whole) ? "objective_value" : "validation_loss", measure = own === "objective_value" ? run.objective : "validation loss";
    const verdict = (worse) => (worse === null ? "–" : worse ? "worse" : "not worse");
    const row = (one) => element("tr", { "data-group": one.group_number },
      element("td", {}, button(one.group_value === null ? String(one.group_number) : fitting(one.group_value), `Show the models of group ${one.group_number} in the leaderboard and the charts`, () => { chosen.ofGroup(one.group_number); document.getElementById("leaderboard").scrollIntoView(); })),
      figure(one.rows), ...(has("validation_rows") ? [figure(one.validation_rows)] : []), figure(one[own], real(one[own])),
      ...(has(whole) ? [figure(one[whole], real(one[whole])), element("td", {}, verdict(one.worse_than_all_rows))] : []),
      figure(one.model), figure(one.configuration), element("td", { class: "long" }, foreign((entries.get(one.model) || {}).words || "–")));
    const number = (name) => ({ name, number: true });
    const heads = ["group", number("rows"), ...(has("validation_rows") ? [number("validation rows")] : []), number(measure),
      ...(has(whole) ? [number("model on all rows"), "than this model"] : []), number("model"), number("conf."), "configuration"];
    const shown = table(heads, run.groups.slice(0, ROWS).map(row), { label: title });
    const more = button(`Show all ${run.groups.length.toLocaleString("en")} groups`, "Show all groups", () => { shown.querySelector("tbody").append(...run.groups.slice(ROWS).map(row)); more.remove(); });
    const worse = run.groups.filter((one) => one.worse_than_all_rows).length;
    const told = has(whole) ? `${worse} of ${run.groups.length} groups gain nothing by models of their own: on their rows, the best model on all rows is better.` : `${run.groups.length} groups have models of their own.`;
    return section(title, element("p", {}, told), shown, run.groups.length > ROWS ? more : null,
      element("p", { class: "pale" }, "Press a group to see its models in the leaderboard and the charts."));
  }

  function parallel(run, chosen, ends) {
    const title = "Hyper-parameters and result";
    const result = { name: run.objective, values: [], isResult: true };
    const entries = wordsOf(run);
    if (!run.parameters.length) return section(title, element("p", {}, "The configurations of this run do not differ in their parameters."));
    const models = run.parameters[0].models;
    result.values = models.map((model) => { const entry = entries.get(model); return entry.status === "failed" ? null : entry.objective_value; });
    const axes = [...run.parameters, result].map((one) => axisOf(one, run));
    const GAP = 104, TOP = 52, HEIGHT = 380, SIDE = 60;
    const goodness = new Map();
    const valued = models.map((model, place) => [model, result.values[place]]).filter(([, value]) => isNumber(value)).sort((a, b) => (run.direction === "max" ? a[1] - b[1] : b[1] - a[1]));
    valued.forEach(([model], place) => goodness.set(model, valued.length > 1 ? place / (valued.length - 1) : 1));
    const configurations = new Map(run.leaderboard.map((entry) => [entry.model, entry.configuration]));
    let visible = chosen.passing("group"); // the lines stay when a group is chosen
    const order = models.map((model, place) => ({ model, place })).sort((a, b) => (goodness.get(a.model) ?? -1) - (goodness.get(b.model) ?? -1));
    const host = element("div", { class: "wide" }), readout = element("p", { class: "readout" }, "");
    const brushes = new Map();
    const xOf = (place, width) => SIDE + (place * (width - 2 * SIDE)) / Math.max(1, axes.length - 1);
    const yOf = (share) => TOP + (1 - share) * (HEIGHT - TOP - 24);
    function shade(model) {
      const good = goodness.get(model);
      if (good === undefined) return style("--bad");
      const [from, to] = dark.matches ? [[105, 115, 125], [108, 178, 255]] : [[132, 143, 154], [11, 99, 196]];
      return `rgb(${from.map((one, at) => Math.round(one + (to[at] - one) * good * good)).join(",")})`;
    }
    function path(pen, place, width) {
      pen.beginPath();
      let before = false;
      axes.forEach((axis, at) => {
        const share = axis.shares[place];
        if (share === null) { before = false; return; }
        if (before) pen.lineTo(xOf(at, width), yOf(share)); else pen.moveTo(xOf(at, width), yOf(share));
        before = true;
      });
      pen.stroke();
    }
    function draw(pen, width) {
      for (const { model, place } of order) {
        if (!visible.has(model)) continue;
        pen.strokeStyle = shade(model);
        pen.lineWidth = (goodness.get(model) ?? 0) > 0.9 ? 1.8 : 1;
        path(pen, place, width);
      }
      const room = (width - 2 * SIDE) / Math.max(1, axes.length - 1);
      axes.forEach((axis, place) => {
        const x = xOf(place, width);
        pen.strokeStyle = style("--pale");
        pen.lineWidth = 1;
        pen.beginPath(); pen.moveTo(x, yOf(1)); pen.lineTo(x, yOf(0)); pen.stroke();
        pen.textAlign = "center";
        pen.fillStyle = style("--ink");
        pen.font = `600 12px ${style("--font")}`;
        pen.fillText(fitted(pen, axis.name, room - 6), x, place % 2 && axes.length > 6 ? 14 : 30);
        pen.font = `12px ${style("--font")}`;
        pen.textAlign = place === axes.length - 1 ? "right" : "left";
        const side = place === axes.length - 1 ? -6 : 6;
        for (const mark of axis.marks) {
          const text = fitted(pen, mark.text, room - 14), wide = pen.measureText(text).width;
          pen.globalAlpha = 0.8;
          pen.fillStyle = style("--ground");
          pen.fillRect(side < 0 ? x + side - wide - 2 : x + side - 2, yOf(mark.share) - 8, wide + 4, 16);
          pen.globalAlpha = 1;
          pen.fillStyle = style("--ink");
          pen.fillText(text, x + side, yOf(mark.share) + 4);
        }
      });
    }
    function emphasise(pen, width) {
      const at = models.findIndex((model) => configurations.get(model) === configurations.get(chosen.emphasised));
      if (chosen.emphasised !== null && at >= 0) {
        pen.lineJoin = "round";
        pen.strokeStyle = style("--ground"); pen.lineWidth = 7; path(pen, at, width);
        pen.strokeStyle = style("--ink"); pen.lineWidth = 3; path(pen, at, width);
      }
      for (const [place, [low, high]] of brushes) {
        const x = xOf(place, width);
        pen.fillStyle = style("--shade");
        pen.strokeStyle = style("--accent");
        pen.lineWidth = 2;
        pen.fillRect(x - 9, yOf(high), 18, yOf(low) - yOf(high));
        pen.strokeRect(x - 9, yOf(high), 18, yOf(low) - yOf(high));
      }
    }
    const canvas = surface(host, HEIGHT, draw, emphasise, 2 * SIDE + (axes.length - 1) * GAP);
    ends.push(canvas.end);
    canvas.canvas.setAttribute("role", "img");
    canvas.canvas.setAttribute("aria-label", `Parallel coordinates of ${models.length} configurations: ${axes.map((axis) => axis.name).join(", ")}. The leaderboard has the numbers.`);
    let drag = null;
    const where = (event) => {
      const box = canvas.canvas.getBoundingClientRect(), x = event.clientX - box.left;
      const share = Math.min(1, Math.max(0, 1 - (event.clientY - box.top - TOP) / (HEIGHT - TOP - 24)));
      let axis = 0;
      axes.forEach((_, place) => { if (Math.abs(xOf(place, box.width) - x) < Math.abs(xOf(axis, box.width) - x)) axis = place; });
      return { axis, share, x, y: event.clientY - box.top, width: box.width };
    };
    const passes = (model) => {
      const place = models.indexOf(model);
      return place >= 0 && [...brushes].every(([axis, [low, high]]) => axes[axis].shares[place] !== null && axes[axis].shares[place] >= low && axes[axis].shares[place] <= high);
    };
    const apply = () => {
      const kept = new Set(models.filter(passes).map((model) => configurations.get(model)));
      chosen.filter("parallel", brushes.size ? (model) => kept.has(configurations.get(model)) : null);
      clear.hidden = !brushes.size;
    };
    canvas.canvas.addEventListener("pointerdown", (event) => {
      if (event.pointerType === "touch") return; // a finger scrolls the page
      drag = where(event);
      canvas.canvas.setPointerCapture(event.pointerId);
    });
    canvas.canvas.addEventListener("pointermove", (event) => {
      const now = where(event);
      if (drag) {
        if (Math.abs(now.y - drag.y) > 3) { brushes.set(drag.axis, [Math.min(drag.share, now.share), Math.max(drag.share, now.share)]); canvas.mark(); }
        return;
      }
      const found = nearLine(now);
      if (found !== chosen.emphasised) chosen.emphasise(found);
    });
    canvas.canvas.addEventListener("pointerup", (event) => {
      if (!drag) return;
      if (Math.abs(where(event).y - drag.y) <= 3) brushes.delete(drag.axis);
      drag = null;
      apply();
    });
    canvas.canvas.addEventListener("pointercancel", () => { drag = null; apply(); });
    canvas.canvas.addEventListener("pointerleave", () => { if (!drag) chosen.emphasise(null); });
    function nearLine({ x, y, width }) {
      const step = (width - 2 * SIDE) / Math.max(1, axes.length - 1);
      const left = Math.min(axes.length - 2, Math.max(0, Math.floor((x - SIDE) / step))), part = (x - SIDE) / step - left;
      let best = null, distance = 12;
      for (const { model, place } of order) {
        const a = axes[left].shares[place], b = axes[left + 1].shares[place];
        if (a === null || b === null || !visible.has(model)) continue;
        const far = Math.abs(yOf(a + (b - a) * part) - y);
        if (far <= distance) { distance = far; best = model; }
      }
      return best;
    }
    const clear = button("Clear ranges", "Clear the ranges on all axes", () => { brushes.clear(); apply(); });
    clear.hidden = true;
    chosen.listen((filtered) => {
      readout.textContent = chosen.emphasised === null ? "" : `${about(entries.get(chosen.emphasised))}: ${run.objective} ${real(entries.get(chosen.emphasised).objective_value)}`;
      if (filtered) { visible = chosen.passing("group"); canvas.again(); } else canvas.mark();
    });
    return section(title, element("p", { class: "pale" }, `Each line is a configuration; the better its result${run.groups.length ? " on all rows" : ""}, the stronger its blue. Red ones failed. Drag along an axis to keep a range.`),
      element("div", { class: "controls" }, clear), host, readout);
  }

  // Where the values of a parameter are on its axis, from 0 to 1. Few values and texts have equal distances.
  function axisOf(parameter) {
    const known = parameter.values.filter((value) => value !== null && value !== undefined), numbers = known.filter(isNumber);
    const different = [...new Set(known)];
    if (numbers.length === known.length && (different.length > 6 || parameter.isResult) && different.length > 1) {
      const low = numbers.reduce((a, b) => Math.min(a, b)), high = numbers.reduce((a, b) => Math.max(a, b));
      const log = low > 0 && high / low >= 50, scale = log ? Math.log : (value) => value;
      const share = (value) => (scale(value) - scale(low)) / (scale(high) - scale(low));
      const at = (part) => (log ? Math.exp(scale(low) + part * (scale(high) - scale(low))) : low + part * (high - low));
      const parts = [0, 0.25, 0.5, 0.75, 1], written = (digits) => parts.map((part) => String(Number(at(part).toPrecision(digits))));
      const texts = [3, 4, 5, 7, 10].map(written).find((one) => new Set(one).size === parts.length) || written(17);
      const marks = parts.map((part, place) => ({ share: part, text: texts[place] }));
      return { name: parameter.name + (log ? " (log)" : ""), shares: parameter.values.map((value) => (isNumber(value) ? share(value) : null)), marks };
    }
    different.sort((a, b) => (isNumber(a) && isNumber(b) ? a - b : String(a).localeCompare(String(b), "en", { numeric: true })));
    const share = (value) => (different.length > 1 ? 0.04 + (0.92 * different.indexOf(value)) / (different.length - 1) : 0.5);
    const every = Math.ceil(different.length / 16);
    return {
      name: parameter.name,
      shares: parameter.values.map((value) => (value === null || value === undefined ? null : share(value))),
      marks: different.filter((_, place) => place % every === 0).map((value) => ({ share: share(value), text: isNumber(value) ? String(value) : value })),
    };
  }

  function bars(label, headings, rows) {
    return table(headings, rows.map((one) => {
      const bar = element("div", { class: one.waiting ? "waiting" : null });
      bar.style.width = `${Math.max(0, Math.min(100, 100 * one.share))}%`;
      return element("tr", {}, element("td", {}, foreign(one.name)), one.cells, element("td", { class: "bar", "aria-hidden": "true" }, bar));
    }), { class: "bars", label });
  }

  function importanceOf(run) {
    const title = "Importance of hyper-parameters";
    if (!run.importance.length) return section(title, element("p", {}, "This needs at least 8 configurations with results that differ in some parameter."));
    const words = (trend) => (trend === null || Math.abs(trend) < 0.3 ? "–" : trend > 0 ? "larger is better" : "smaller is better");
    const rows = run.importance.map((one) => ({
      name: one.name, share: one.share,
      cells: [figure(one.share, percent(one.share)), element("td", {}, words(one.trend))],
    }));
    const most = Math.max(...run.importance.map((one) => one.configurations));
    return section(title, bars(title, ["parameter", { name: "share", number: true }, "direction", ""], rows),
      element("p", { class: "pale" }, `How much of the differences in rank between ${most} ${run.groups.length ? "models on all rows" : "configurations"} a parameter explains alone, less what chance would. Few configurations give rough numbers. Parameters that matter only together have small shares.`));
  }

  function whereTimeWent(run) {
    const title = "Where the time went";
    if (!run.time.length) return section(title, element("p", {}, "No time was recorded yet."));
    const training = run.time.find((part) => part.activity === "training");
    return section(title, element("p", {}, `${percent(training ? training.share : 0)} of the segments' time was training.`),
      bars(title, ["activity", { name: "seconds", number: true }, { name: "share", number: true }, ""], run.time.map((part) => ({
        name: part.activity, share: part.share || 0, waiting: part.activity === "waiting",
        cells: [figure(part.seconds, isNumber(part.seconds) ? part.seconds.toFixed(2) : null), figure(part.share, percent(part.share))],
      }))));
  }

  function timeline(run, chosen, colour, ends) {
    const title = "What each segment did", hops = run.timeline, count = hops.start.length, lanes = Math.min(hops.segments.length, 512);
    if (!count) return section(title, element("p", {}, "No hop has ended yet."));
    const lane = lanes > 24 ? 12 : 26, LEFT = 84, TOP = 4, height = TOP + lane * lanes + 24;
    const EVALUATE = hops.activities.indexOf("evaluate");
    const entries = wordsOf(run);
    let last = 1;
    for (let place = 0; place < count; place += 1) last = Math.max(last, hops.start[place] + hops.length[place]);
    const host = element("div", { class: "chart", tabindex: 0, role: "img", "aria-label": `Time line of ${lanes} segments with ${count} hops and evaluations` });
    const HINT = "A box of full height is a hop, one of half height an evaluation; gaps are waiting. Point at a box to see its model.";
    const readout = element("p", { class: "readout", "aria-live": "polite" }, HINT);
    const shown = view(0, last, () => canvas.again());
    let pointed = -1, drag = null;
    const tall = (place) => (hops.activity[place] === EVALUATE ? (lane - 4) / 2 : lane - 4); // of a box
    const top = (place) => TOP + lane * (hops.lane[place] + 1) - 2 - tall(place);
    const xOf = (time, width) => LEFT + ((time - shown.from) / (shown.to - shown.from)) * (width - LEFT - 8);
    function draw(pen, width) {
      pen.fillStyle = style("--ink");
      for (let at = 0; at < lanes; at += 1) {
        if (lane >= 20 || at % 4 === 0) pen.fillText(`segment ${hops.segments[at]}`, 2, TOP + lane * at + lane / 2 + 4);
      }
      pen.fillStyle = style("--raised");
      for (let at = 0; at < lanes; at += 1) pen.fillRect(LEFT, TOP + lane * at + 1, width - LEFT - 8, lane - 2);
      pen.save();
      pen.beginPath();
      pen.rect(LEFT, 0, width - LEFT - 8, height);
      pen.clip();
      const ink = new Map(), filled = new Float64Array(lanes).fill(-1), grey = style("--grey-line");
      for (let place = 0; place < count; place += 1) {
        const begin = hops.start[place], end = begin + hops.length[place];
        const at = hops.lane[place];
        if (end < shown.from || begin > shown.to || at >= lanes) continue;
        const left = xOf(begin, width), right = xOf(end, width);
        if (right - left < 0.5 && right <= filled[at]) continue; // this pixel has a box
        filled[at] = Math.max(filled[at], Math.ceil(right * 2) / 2);
        const model = hops.model[place];
        if (!ink.has(model)) ink.set(model, colour.of(model));
        pen.fillStyle = chosen.shown.has(model) ? ink.get(model) : grey;
        const wide = Math.max(0.5, right - left - (right - left > 4 ? 0.7 : 0));
        pen.fillRect(left, top(place), wide, tall(place));
        if (wide > 22 && lane >= 20 && hops.activity[place] !== EVALUATE) {
          pen.fillStyle = style("--ground");
          pen.fillText(String(model), left + 4, TOP + lane * at + lane / 2 + 4);
        }
      }
      pen.restore();
      pen.fillStyle = style("--pale");
      const size = shown.to - shown.from, marks = width < 500 ? 2 : 5;
      for (let mark = 0; mark <= marks; mark += 1) {
        const time = shown.from + (size * mark) / marks;
        pen.textAlign = mark === 0 ? "left" : mark === marks ? "right" : "center";
        pen.fillText(size < 2000 ? `${(time / 1000).toFixed(3)} s` : duration(time / 1000), xOf(time, width), height - 6);
      }
      pen.textAlign = "left";
    }
    function emphasise(pen, width) {
      pen.beginPath();
      pen.rect(LEFT, 0, width - LEFT - 8, height);
      pen.clip();
      if (chosen.emphasised !== null) {
        pen.fillStyle = style("--ground");
        pen.globalAlpha = 0.6;
        pen.fillRect(LEFT, 0, width - LEFT - 8, TOP + lane * lanes);
        pen.globalAlpha = 1;
        for (let place = 0; place < count; place += 1) {
          if (hops.model[place] !== chosen.emphasised || hops.lane[place] >= lanes) continue;
          const left = xOf(hops.start[place], width), right = xOf(hops.start[place] + hops.length[place], width);
          if (right < LEFT || left > width) continue;
          pen.fillStyle = colour.of(chosen.emphasised);
          pen.fillRect(left, top(place), Math.max(1, right - left), tall(place));
        }
      }
      if (pointed >= 0) {
        const left = xOf(hops.start[pointed], width), right = xOf(hops.start[pointed] + hops.length[pointed], width);
        pen.strokeStyle = style("--ink");
        pen.lineWidth = 2;
        pen.strokeRect(left, TOP + lane * hops.lane[pointed] + 1, Math.max(1, right - left), lane - 2);
      }
      if (drag) {
        pen.fillStyle = style("--shade");
        pen.fillRect(Math.min(drag.from, drag.to), 0, Math.abs(drag.to - drag.from), height - 20);
      }
    }
    const canvas = surface(host, height, draw, emphasise);
    ends.push(canvas.end);
    const at = (event) => { const box = canvas.canvas.getBoundingClientRect(); return { x: event.clientX - box.left, y: event.clientY - box.top, width: box.width }; };
    const timeAt = (x, width) => shown.from + ((x - LEFT) / (width - LEFT - 8)) * (shown.to - shown.from);
    canvas.canvas.addEventListener("pointerdown", (event) => { const { x } = at(event); if (x >= LEFT && event.pointerType !== "touch") { drag = { from: x, to: x }; canvas.canvas.setPointerCapture(event.pointerId); } });
    canvas.canvas.addEventListener("pointermove", (event) => {
      const { x, y, width } = at(event);
      if (drag) { drag.to = Math.max(LEFT, x); canvas.mark(); return; }
      const time = timeAt(x, width), segment = Math.floor((y - TOP) / lane), slack = (shown.to - shown.from) / width;
      let found = -1;
      if (x >= LEFT) {
        for (let place = 0; place < count; place += 1) {
          if (hops.lane[place] === segment && hops.start[place] <= time + slack && hops.start[place] + hops.length[place] >= time - slack) found = place;
        }
      }
      if (found === pointed) return;
      pointed = found;
      readout.textContent = found < 0 ? HINT : tell(found);
      canvas.mark();
    });
    canvas.canvas.addEventListener("pointerup", (event) => {
      if (!drag) return;
      const { from, to } = drag, { width } = at(event);
      drag = null;
      if (Math.abs(to - from) > 4) shown.set(timeAt(Math.min(from, to), width), timeAt(Math.max(from, to), width)); else canvas.mark();
    });
    canvas.canvas.addEventListener("pointerleave", () => { if (!drag && pointed >= 0) { pointed = -1; readout.textContent = HINT; canvas.mark(); } });
    canvas.canvas.addEventListener("dblclick", () => shown.reset());
    function tell(place) {
      const what = ["trains", "averages", "evaluates"][hops.activity[place]] || "works on";
      const hop = hops.hop[place] === null ? "" : `, hop ${hops.hop[place]}`;
      return `segment ${hops.segments[hops.lane[place]]} ${what} ${about(entries.get(hops.model[place]))}, epoch ${hops.epoch[place]}${hop}: ${(hops.length[place] / 1000).toFixed(3)} s, from ${(hops.start[place] / 1000).toFixed(3)} s`;
    }
    chosen.listen((filtered) => (filtered ? canvas.again() : canvas.mark()));
    zoomKeys(host, shown);
    const cut = hops.segments.length > lanes ? element("p", {}, `The first ${lanes} of ${hops.segments.length} segments.`) : null;
    return section(title, zoomButtons(shown), host, readout, cut);
  }

  function failures(run) {
    const ended = run.leaderboard.filter((entry) => entry.status === "failed" || entry.status === "stopped");
    const title = "Models that failed or ended early";
    if (!ended.length) return section(title, element("p", {}, "No model failed, and none ended early."));
    ended.sort((one, other) => (one.status === "failed" ? 0 : 1) - (other.status === "failed" ? 0 : 1)); // the sort keeps the order of the leaderboard
    const group = (entry) => (run.groups.length ? [element("td", {}, foreign(entry.group_number === null ? "all rows" : entry.group_value ?? entry.group_number))] : []);
    const rows = ended.map((entry) => element("tr", {}, element("td", { class: "number" }, String(entry.model)), group(entry), element("td", { class: "long" }, foreign(entry.words || "–")),
      element("td", {}, status(entry.status)), element("td", {}, foreign(entry.stopped_by)), figure(entry.epochs_done), element("td", { class: "long" }, foreign(entry.reason))));
    return section(title, table([{ name: "model", number: true }, ...(run.groups.length ? ["group"] : []), "configuration", "status", "by", { name: "epochs", number: true }, "reason"], rows, { label: title }));
  }

  function decisions(run) {
    const title = "Decisions and lineage", parts = [];
    const rows = run.decisions.map((one) => element("tr", {}, element("td", {}, moment(one.at)), element("td", { class: "number" }, one.model === null ? "the run" : String(one.model)),
      element("td", { class: "number" }, short(one.epoch)), element("td", {}, foreign(one.decision)), element("td", { class: one.reason ? "long" : null }, foreign(one.reason)),
      element("td", {}, foreign(one.added)), element("td", {}, foreign(one.requested_by || one.decided_by))));
    if (rows.length) parts.push(table(["when", { name: "model", number: true }, { name: "epoch", number: true }, "decision", "reason", "added models", "by"], rows, { label: title }));
    else parts.push(element("p", {}, "No decision has changed the run."));
    const waiting = run.requests.filter((one) => one.status !== "done");
    if (waiting.length) {
      parts.push(element("h3", {}, "Requests that were refused or wait"), element("ul", {}, waiting.map((one) =>
        element("li", {}, foreign(`${one.action}${one.model === null ? "" : ` of model ${one.model}`}: ${one.status}${one.refusal ? `, ${one.refusal}` : ""} (${one.by})`)))));
    }
    const children = new Map(), known = wordsOf(run);
    for (const entry of run.leaderboard) if (entry.parent !== null) children.set(entry.parent, [...(children.get(entry.parent) || []), entry]);
    if (children.size) {
      const seen = new Set();
      const branch = (model) => {
        if (seen.has(model)) return null; // others write these rows: a circle must end
        seen.add(model);
        const entry = known.get(model), below = (children.get(model) || []).map((child) => branch(child.model)).filter(Boolean);
        const value = entry ? `, ${run.objective} ${real(entry.objective_value)}` : "";
        return element("li", {}, foreign(entry ? about(entry) + value : `model ${model}`), below.length ? element("ul", {}, below) : null);
      };
      const roots = [...children.keys()].filter((model) => !known.has(model) || known.get(model).parent === null);
      parts.push(element("h3", {}, "Models that continue the state of another"), element("ul", { class: "tree" }, roots.map(branch)));
    }
    return section(title, parts);
  }

  function settings(run) {
    const rows = Object.entries(run.settings).map(([name, value]) => element("tr", {}, element("td", {}, foreign(name)), element("td", { class: "long" }, foreign(value))));
    return section("Settings", table(["setting", "value"], rows, { label: "Settings" }));
  }

  const bestName = (run) => `best ${run.objective || "result"}`;
  function facts(run) {
    const { progress } = run, best = run.leaderboard[0], training = run.time.find((part) => part.activity === "training");
    const many = (name) => run.leaderboard.filter((entry) => entry.status === name).length;
    return {
      quality: run.model.why ? run.quality : null, // else the model's part of the page says it
      "predicts with": run.model.why && run.chosen_configuration ? `configuration ${run.chosen_configuration}${run.made_of ? `, ${run.made_of}` : ""}` : null,
      [bestName(run)]: best && isNumber(best.objective_value) ? best.objective_value : null,
      "best configuration": best ? best.configuration : null,
      models: run.leaderboard.length,
      groups: run.groups.length || null,
      finished: many("finished"), "ended early": many("stopped"), failed: many("failed"),
      hops: `${progress.hops_done} of ${progress.hops_total}`,
      [progress.status === "running" ? "so far" : "took"]: duration(progress.seconds_elapsed),
      "time to the best": run.best.length ? duration(run.best.at(-1).reached) : null,
      "rows per second": isNumber(progress.rows_per_second) ? Math.round(progress.rows_per_second) : null,
      training: training ? percent(training.share) : null,
    };
  }

  const WIDE = ["quality", "predicts with"]; // facts that are sentences
  const factText = (name, value) => (name.startsWith("best ") && name !== "best configuration" ? real(value) : short(value));

  // What the whole page is about: the model if there is one, and else the run.
  function title(run) {
    const { model } = run, targets = run.targets && run.targets.length ? [" to predict ", foreign(run.targets.join(", "))] : null;
    const about = [element("p", {}, "Trained on ", foreign(run.source_table), targets, " into ", foreign(run.model_table))];
    if (model.why) return element("div", {}, element("h1", { class: "text" }, named(run)), about, drawModel(run, []));
    return element("div", {}, element("h1", { class: "text" }, model.model_table), about,
      model.quality || run.quality ? element("p", { class: "quality" }, foreign(model.quality || run.quality)) : null,
      element("p", { class: "pale" }, "Configuration ", foreign(`${model.configuration}${model.made_of ? `, ${model.made_of}` : ""}`), ` · run ${run.run}`));
  }

  function head(run) {
    const text = [run.description, run.message, run.ended_by ? `ended by: ${run.ended_by}` : null].filter(Boolean);
    const tiles = Object.entries(facts(run)).filter(([, value]) => value !== null).map(([name, value]) =>
      element("div", { class: WIDE.includes(name) ? "wide" : null }, element("dt", {}, name + (run.groups.length && name === bestName(run) ? ", on all rows" : "")), element("dd", { title: String(value), "data-fact": name, "data-value": value }, factText(name, value))));
    return element("header", {}, run.model.why ? null : element("h1", { class: "text", id: "search" }, `The search: ${named(run)}`),
      element("p", {}, status(run.status), ` · started ${moment(run.started_at)} · `, foreign(run.owner)),
      text.map((one) => element("p", { class: "notice" }, foreign(one))), element("dl", { class: "tiles" }, tiles),
      run.objective ? element("p", { class: "pale" }, meaning(run)) : null);
  }

  // -- runs beside each other --------------------------------------------------------------------------------------

  function compared(runs, ends) {
    const targets = new Set(runs.map((run) => JSON.stringify(run.targets ?? ["not visible", run.run, run.owner]))), objectives = new Set(runs.map((run) => run.objective));
    const parts = [];
    if (targets.size > 1) parts.push(element("p", { class: "notice" }, "These runs predict different targets, or some that you may not see, so their results do not compare: ", foreign(runs.map((run) => `run ${run.run}: ${run.targets ? run.targets.join(", ") : "not visible to you"}`).join("; "))));
    if (objectives.size > 1) parts.push(element("p", { class: "notice" }, "These runs have different objectives: ", foreign(runs.map((run) => `run ${run.run}: ${run.objective}`).join("; "))));
    const heads = ["", ...runs.map((run) => named(run))];
    const beside = (label, maps, onlyDifferent) => {
      const names = [...new Set(maps.flatMap((map) => Object.keys(map)))];
      const different = (name) => new Set(maps.map((map) => JSON.stringify(map[name] ?? null))).size > 1;
      const rows = names.filter((name) => (onlyDifferent ? different(name) : maps.some((map) => (map[name] ?? null) !== null))).map((name) => element("tr", {}, element("td", {}, foreign(name)),
        maps.map((map) => element("td", { "data-value": map[name] ?? "" }, foreign(factText(name, map[name]))))));
      return rows.length ? table(heads.map((one) => ({ name: one || " " })), rows, { label }) : element("p", {}, "Nothing differs.");
    };
    const results = beside("Results", runs.map((run) => ({ status: run.status, ...facts(run) })), false);
    const host = element("div", {}), box = element("input", { type: "checkbox", onchange: () => fill() });
    const fill = () => host.replaceChildren(beside("Settings that differ", runs.map((run) => run.settings), !box.checked));
    fill();
    const chart = targets.size === 1 && objectives.size === 1 ? bestAgainstTime(runs, ends, "Best result against time, of all runs") : null;
    return element("div", { id: "compared" }, element("h1", {}, `${runs.length} runs beside each other`), parts,
      section("Results of the runs", results), chart,
      section("Settings of the runs", element("div", { class: "controls" }, element("label", {}, box, "Also settings that are the same")), host));
  }

  function details(run, ends) {
    const chosen = choice(run), colour = colouring(run, chosen);
    return element("article", {}, title(run), run.model.why ? null : drawModel(run, ends), head(run), bestAgainstTime([run], ends, "Best result against time"), learningCurves(run, chosen, colour, ends),
      leaderboard(run, chosen, colour), groupsOf(run, chosen), parallel(run, chosen, ends), importanceOf(run), timeline(run, chosen, colour, ends),
      whereTimeWent(run), failures(run), decisions(run), settings(run));
  }

  const drawModel = modelPart({ element, foreign, section, table, bars, figure, surface, style, fitted, percent, moment, isNumber, about });
  const { runs } = contents;
  const one = element("div", {});
  let ends = [];
  function open(place) {
    ends.forEach((end) => end());
    ends = [];
    one.replaceChildren(details(runs[place], ends));
    tabs.forEach((tab, at) => tab.setAttribute("aria-pressed", String(at === place)));
  }
  const tabs = runs.map((run, at) => element("button", { type: "button", class: "text", onclick: () => open(at) }, named(run)));
  place.append(...(runs.length > 1 ? [compared(runs, []), element("section", {}, element("nav", { class: "controls", "aria-label": "Runs" }, tabs))] : []), one,
    element("p", { class: "pale" }, `Made ${moment(contents.made_at)} by cerebro_db ${contents.version}. Charts: uPlot 1.6.32, © Leon Sorokin, MIT licence.`));
  open(0);
  dark.addEventListener("change", () => drawn.forEach((again) => again()));
})();
