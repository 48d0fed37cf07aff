
// Draws the part of a report that is about the model. Names in it are other people's, as in report.js, whose tools it uses.
const modelPart = (tools) => {
  "use strict";
  const { element, foreign, section, table, bars, figure, surface, style, fitted, percent, moment, isNumber, about } = tools;
  const METRICS = {
    accuracy: "accuracy", log_loss: "log loss", f1: "F1", auc: "AUC", balanced_accuracy: "balanced accuracy", ece: "calibration error",
    rmse: "RMSE", mae: "mean absolute error", mape: "mean relative error", r2: "R²",
  };
  const MEANINGS = {
    accuracy: "the share of rows whose class is right", log_loss: "the cross-entropy; smaller is better",
    f1: "the harmonic mean of precision and recall", auc: "how well the rows of the class are told from the others; by chance 0.5",
    balanced_accuracy: "the mean of the recall of all classes", ece: "the mean distance between a probability and how often it is right",
    rmse: "the usual size of an error; large errors count more", mae: "the mean size of an error",
    mape: "the mean size of an error, as a part of the value", r2: "the share of the variance that is explained",
  };
  const SHARES = ["accuracy", "balanced_accuracy", "f1", "auc", "r2", "ece", "log_loss"];
  const FIRST = ["accuracy", "auc", "f1", "log_loss", "rmse", "r2", "mae"]; // tiles
  const SHADES = 5; // .s0 to .s5 of the style
  const ROOM = { left: 54, right: 10, top: 10, bottom: 38 };

  // Three digits, as people say a number; more before the point.
  function rounded(value) {
    if (!isNumber(value)) return "–";
    if (Math.abs(value) >= 999.5) return Math.round(value).toLocaleString("en");
    return value === 0 ? "0" : Math.abs(value) < 1e-4 ? value.toPrecision(2) : String(Number(value.toPrecision(3)));
  }
  const measured = (name, value) => (!isNumber(value) ? "–" : SHARES.includes(name) ? value.toFixed(3) : rounded(value));
  const between = (name, one) => (isNumber(one.low) ? `${measured(name, one.low)} to ${measured(name, one.high)}` : "–");
  const shown = (value) => (isNumber(value) ? rounded(value) : value);
  const number = (name) => ({ name, number: true });

  // -- charts ------------------------------------------------------------------------------------------------------

  function ticks(low, high, most) {
    const raw = (high - low) / most, size = 10 ** Math.floor(Math.log10(raw)), step = [1, 2, 5, 10].find((one) => one * size >= raw) * size;
    const found = [];
    for (let at = Math.ceil(low / step - 1e-9); at <= high / step + 1e-9; at += 1) found.push(at * step);
    return found;
  }
  const tickText = (value, all) => {
    const step = all.length > 1 ? all[1] - all[0] : Math.abs(value) || 1, size = Math.max(...all.map(Math.abs));
    if (size >= 1e6) return `${Number((value / 1e6).toPrecision(4))}M`;
    if (size >= 1e4) return `${Number((value / 1e3).toPrecision(4))}k`;
    return value.toFixed(Math.max(0, Math.min(6, -Math.floor(Math.log10(step) + 1e-9))));
  };

  // A chart with two axes. `draw(pen, x, y)` gets the places of values.
  function chart(ends, options) {
    const { label, height = 260, xs, ys, xName, yName, draw, legend } = options;
    const host = element("div", { role: "img", "aria-label": label });
    const paint = (pen, width, tall) => {
      const { left, right, top, bottom } = ROOM, wide = width - left - right, high = tall - top - bottom;
      const x = (value) => left + ((value - xs[0]) / (xs[1] - xs[0])) * wide, y = (value) => top + high - ((value - ys[0]) / (ys[1] - ys[0])) * high;
      const across = ticks(xs[0], xs[1], Math.max(2, Math.floor(wide / 70))), up = ticks(ys[0], ys[1], 5);
      pen.lineWidth = 1;
      pen.strokeStyle = style("--line");
      pen.fillStyle = style("--pale");
      pen.textBaseline = "middle";
      pen.textAlign = "right";
      for (const one of up) {
        pen.beginPath(); pen.moveTo(left, y(one)); pen.lineTo(left + wide, y(one)); pen.stroke();
        pen.fillText(tickText(one, up), left - 6, y(one));
      }
      pen.textAlign = "center";
      for (const one of across) {
        pen.beginPath(); pen.moveTo(x(one), top); pen.lineTo(x(one), top + high); pen.stroke();
        pen.fillText(tickText(one, across), Math.min(x(one), width - 16), top + high + 11);
      }
      pen.fillText(fitted(pen, xName, wide), left + wide / 2, tall - 8);
      pen.save();
      pen.translate(9, top + high / 2);
      pen.rotate(-Math.PI / 2);
      pen.fillText(fitted(pen, yName, high), 0, 0);
      pen.restore();
      pen.beginPath();
      pen.rect(left - 3, top - 3, wide + 6, high + 6);
      pen.clip();
      draw(pen, x, y);
    };
    ends.push(surface(host, height, paint, () => {}).end);
    const keys = (legend || []).map(([colour, text]) => element("span", { class: "key" }, element("span", { class: `dot ${colour}` }), text));
    return element("figure", {}, element("figcaption", {}, label), host, keys.length ? element("p", { class: "pale" }, keys) : null);
  }
  function line(pen, points, x, y, colour, wide) {
    pen.strokeStyle = style(colour);
    pen.lineWidth = wide || 2;
    pen.beginPath();
    points.forEach(([a, b], place) => (place ? pen.lineTo(x(a), y(b)) : pen.moveTo(x(a), y(b))));
    pen.stroke();
  }
  function dashed(pen, points, x, y) {
    pen.save();
    pen.setLineDash([5, 4]);
    line(pen, points, x, y, "--grey-line", 1);
    pen.restore();
  }
  const charts = (...found) => element("div", { class: "charts" }, found);

  // -- sections ----------------------------------------------------------------------------------------------------

  function metrics(target) {
    const told = { auc: null, f1: null };
    if (target.labels && target.labels.length === 2) for (const name of Object.keys(told)) told[name] = ` (class ${target.labels[1] ?? "NULL"})`;
    const listed = target.metrics.filter((one) => one.metric !== "mse"); // RMSE says the same in the units of the target
    const rows = listed.map((one) => element("tr", { "data-metric": one.metric },
      element("td", {}, METRICS[one.metric] || one.metric, told[one.metric] ? element("span", { class: "text inline" }, told[one.metric]) : null), figure(one.value, measured(one.metric, one.value)),
      element("td", { class: "number" }, between(one.metric, one)), figure(one.baseline, measured(one.metric, one.baseline)), element("td", { class: "pale meaning" }, MEANINGS[one.metric] || "")));
    const simple = target.labels ? "always the most frequent class" : "always the mean";
    const parts = [table(["metric", number("value"), number("95 % interval"), number(simple), "meaning"], rows, { label: "Metrics", class: "metrics" })];
    const notes = [`On ${target.compared.toLocaleString("en")} rows for validation${target.compared < target.rows ? `, a random sample of ${target.rows.toLocaleString("en")}` : ""}. They have chosen the model, so it is slightly worse on new rows.`];
    if (target.without_target) notes.push(`${target.without_target.toLocaleString("en")} more rows have no known value of the target.`);
    if (target.last_known) notes.push(`The last known value as the forecast: RMSE ${rounded(target.last_known.rmse)}, mean absolute error ${rounded(target.last_known.mae)}.`);
    if (target.interval) notes.push(`Intervals with coverage ${target.interval.coverage} (coverage => ${target.interval.coverage}) are ${rounded(target.interval.width)} wide on average, and hold ${percent(target.interval.inside)} of these rows.`);
    parts.push(element("p", { class: "pale" }, notes.join(" ")));
    return parts;
  }

  function confusion(target) {
    const { labels, counts } = target.confusion, label = `Actual and predicted ${target.target}`;
    const heads = [element("th", { scope: "col" }, "actual ↓ predicted →"), labels.map((one) => element("th", { scope: "col", class: "number" }, foreign(one))), element("th", { scope: "col", class: "number" }, "recall")];
    const sums = labels.map((_, place) => counts.reduce((sum, row) => sum + row[place], 0));
    const rows = counts.map((row, at) => {
      const all = row.reduce((sum, one) => sum + one, 0);
      return element("tr", {}, element("th", { scope: "row" }, foreign(labels[at])), row.map((count, place) => element("td", {
        class: `number s${count && all ? Math.max(1, Math.round((SHADES * count) / all)) : 0}${at === place ? " right" : ""}`, "data-value": count, title: all ? `${percent(count / all)} of the rows of this class` : null,
      }, count.toLocaleString("en"))), figure(all ? row[at] / all : null, all ? percent(row[at] / all) : "–"));
    });
    const precision = element("tr", {}, element("th", { scope: "row" }, "precision"), labels.map((_, at) => figure(sums[at] ? counts[at][at] / sums[at] : null, sums[at] ? percent(counts[at][at] / sums[at]) : "–")), element("td", {}));
    if (target.confusion.others) { rows.at(-1).lastChild.textContent = "–"; precision.children[labels.length].textContent = "–"; }
    return element("div", { class: "scroll tall confusion", tabindex: 0, role: "region", "aria-label": label },
      element("table", {}, element("thead", {}, element("tr", {}, heads)), element("tbody", {}, rows, precision)));
  }

  function curves(target, ends) {
    const { roc, precision, share } = target.curves, name = target.labels[1] ?? "NULL", unit = [0, 1];
    const auc = target.metrics.find((one) => one.metric === "auc");
    return [charts(
      chart(ends, { label: `ROC curve${auc ? `, AUC ${measured("auc", auc.value)}` : ""}`, xs: unit, ys: unit, xName: "share of the other rows", yName: "share of the rows of the class",
        draw: (pen, x, y) => { dashed(pen, [[0, 0], [1, 1]], x, y); line(pen, roc, x, y, "--c0"); } }),
      chart(ends, { label: "Precision and recall", xs: unit, ys: unit, xName: "recall", yName: "precision",
        draw: (pen, x, y) => { dashed(pen, [[0, share], [1, share]], x, y); line(pen, precision, x, y, "--c0"); } }),
    ), element("p", { class: "pale" }, "Of the class ", foreign(name), ", for every threshold of its probability. The dashed line is a model that guesses.")];
  }

  function calibration(target, ends) {
    const after = target.calibrated, points = (pen, bins, x, y, colour) => {
      const most = Math.max(...bins.map(([, , rows]) => rows));
      line(pen, bins, x, y, colour);
      pen.fillStyle = style(colour);
      for (const [a, b, rows] of bins) { pen.beginPath(); pen.arc(x(a), y(b), 2.5 + 4 * Math.sqrt(rows / most), 0, 7); pen.fill(); }
    };
    const least = Math.min(...target.reliability.map((one) => Math.min(one[0], one[1])), 0.9), low = Math.max(0, Math.floor(least * 10) / 10);
    const drawn = chart(ends, { label: "How often the predicted class is right", xs: [low, 1], ys: [low, 1], xName: "probability of the predicted class", yName: "how often it is right",
      legend: after ? [["c1", "as predicted"], ["c0", "calibrated"]] : [["c1", "as predicted"]],
      draw: (pen, x, y) => { dashed(pen, [[0, 0], [1, 1]], x, y); points(pen, target.reliability, x, y, "--c1"); if (after) points(pen, after.reliability, x, y, "--c0"); } });
    const changed = (name, digits) => {
      const [before, now] = after[name].map((one) => one.toFixed(digits));
      return before === now ? `stays ${now}` : `goes from ${before} to ${now}`;
    };
    const said = after ? `cerebro.calibrate keeps the temperature ${rounded(after.temperature)} with the model. With calibrated => true, the log loss ${changed("log_loss", 4)} and the calibration error ${changed("ece", 3)} on these rows.`
      : "No calibration is kept with the model: cerebro.calibrate makes one.";
    return [charts(drawn, element("div", {}, element("p", {}, said), element("p", { class: "pale" }, "On the dashed line, probabilities are as large as predictions are right. Below it the model is too sure. A larger dot stands for more rows.")))];
  }

  function residuals(target, ends) {
    const all = target.scatter.flat(), low = Math.min(...all), high = Math.max(...all), room = (high - low || 1) * 0.04, range = [low - room, high + room];
    const parts = [chart(ends, { label: "Predicted and actual values", xs: range, ys: range, xName: `actual ${target.target}`, yName: "predicted",
      draw: (pen, x, y) => {
        pen.fillStyle = style("--c0");
        pen.globalAlpha = target.scatter.length > 300 ? 0.45 : 0.7;
        for (const [a, b] of target.scatter) { pen.beginPath(); pen.arc(x(a), y(b), 2.5, 0, 7); pen.fill(); }
        pen.globalAlpha = 1;
        dashed(pen, [[range[0], range[0]], [range[1], range[1]]], x, y);
      } })];
    const { edges, counts, mean } = target.residuals;
    if (edges.at(-1) > edges[0]) {
      parts.push(chart(ends, { label: "Errors: actual - predicted", xs: [edges[0], edges.at(-1)], ys: [0, Math.max(...counts) * 1.05], xName: "error", yName: "rows",
        draw: (pen, x, y) => {
          pen.fillStyle = style("--c0");
          counts.forEach((count, place) => pen.fillRect(x(edges[place]) + 0.5, y(count), Math.max(1, x(edges[place + 1]) - x(edges[place]) - 1), y(0) - y(count)));
          dashed(pen, [[0, 0], [0, Math.max(...counts) * 1.05]], x, y);
        } }));
    }
    const side = mean > 0 ? "low" : "high";
    return [charts(parts), element("p", { class: "pale" }, `The mean error is ${rounded(mean)}: predictions are ${Math.abs(mean) < 1e-9 ? "neither too high nor too low" : `too ${side} by that`} on average. Points on the dashed line are exact.${target.scatter.length < target.compared ? ` ${target.scatter.length.toLocaleString("en")} rows are drawn.` : ""} The outer bars have the largest hundredth of the errors at each end.`)];
  }

  function importance(model) {
    const title = "Importance of columns", { columns, why } = model.importance;
    if (model.judged_why) return null;
    if (why) return section(title, element("p", { class: "notice" }, foreign(why)));
    if (!columns.length) return null;
    const before = columns[0].loss_before, most = Math.max(...columns.map((one) => one.importance), 1e-12);
    const target = model.targets.length === 1 ? model.targets[0] : null, mse = target && target.metrics.find((one) => one.metric === "mse");
    const isSquared = mse && Math.abs(mse.value - before) <= 1e-3 * Math.abs(before);
    const value = isSquared ? Math.sqrt : (one) => one, name = isSquared ? "RMSE" : target && target.labels ? "log loss" : "loss";
    const rows = columns.map((one) => ({ name: one.column_name, share: one.importance / most, cells: [figure(one.importance, rounded(value(Math.max(0, before + one.importance))))] }));
    return section(title, element("p", {}, `The ${name} is ${rounded(value(before))}. If the values of a column are shuffled among the rows, it becomes:`),
      bars(title, ["column", number(name), ""], rows), element("p", { class: "pale" }, "Columns that say the same share their importance. A bar is how much the loss grows."));
  }

  function examples(target, model) {
    const order = new Map(model.importance.columns.map((one, place) => [one.column_name, place]));
    const first = target.examples.flatMap((sort) => sort.rows)[0];
    const columns = first ? first.columns.map(([name]) => name).sort((a, b) => (order.get(a) ?? 1e9) - (order.get(b) ?? 1e9)) : [];
    const heads = ["", target.labels ? "actual" : number("actual"), target.labels ? "predicted" : number("predicted"), number(target.labels ? "probability" : "error"), ...columns];
    const rows = target.examples.flatMap((sort) => sort.rows.map((row) => {
      const values = new Map(row.columns), wrong = target.labels && row.actual !== row.predicted;
      const cell = (value) => (target.labels ? element("td", {}, foreign(value ?? "NULL")) : element("td", { class: "number" }, shown(value)));
      return element("tr", { class: wrong ? "wrong" : null }, element("td", { class: "sort" }, sort.sort), cell(row.actual), cell(row.predicted),
        target.labels ? figure(row.probability, row.probability.toFixed(3)) : figure(row.actual - row.predicted, rounded(row.actual - row.predicted)),
        columns.map((name) => element("td", {}, foreign(values.get(name) ?? "NULL"))));
    }));
    if (!rows.length) return null;
    const last = model.windows ? " Of a window, the columns of its last row." : "";
    return [table(heads, rows, { label: `Example predictions of ${target.target}`, class: "examples" }),
      element("p", { class: "pale" }, `Rows for validation, as the model reads them: numbers are rounded, the most important columns first.${last}${target.labels ? " Wrong rows of which a model is sure often have a wrong label, or lack a column that people know." : ""}`), ...pushed(target, model)];
  }

  // For each example, a bar for each of the columns that changed the prediction most.
  function pushed(target, model) {
    const sorts = target.examples.map((sort) => ({ sort: sort.sort, rows: sort.rows.filter((row) => row.pushed) })).filter((sort) => sort.rows.length);
    if (!sorts.length) return [];
    const most = Math.max(...sorts.flatMap((sort) => sort.rows.flatMap((row) => row.pushed.pushes.map(([, value]) => Math.abs(value)))), 1e-12);
    const said = (value) => (target.labels ? value.toFixed(2) : rounded(value));
    const signed = (value) => (Number(said(Math.abs(value))) === 0 ? said(0) : `${value < 0 ? "−" : "+"}${said(Math.abs(value))}`);
    const line = (name, value) => {
      const bar = element("div", { class: value < 0 ? "down" : "up" });
      bar.style.width = `${(50 * Math.min(1, Math.abs(value) / most)).toFixed(1)}%`;
      return element("tr", {}, element("td", {}, name), element("td", { class: "push", "aria-hidden": "true" }, bar), figure(value, signed(value)));
    };
    const card = (row) => {
      const values = new Map(row.columns), { base, pushes, others: [count, rest] } = row.pushed, wrong = target.labels && row.actual !== row.predicted;
      const value = target.labels ? row.probability : row.predicted, name = (one) => foreign(values.has(one) ? `${one}: ${values.get(one) ?? "NULL"}` : one);
      const actual = target.labels && !wrong ? null : [", actual ", element("span", { class: "text inline" }, shown(row.actual ?? "NULL"))];
      return element("div", { class: wrong ? "pushed wrong" : "pushed" },
        element("p", {}, target.labels ? [foreign(row.predicted ?? "NULL"), " "] : null, said(value), actual),
        element("p", { class: "pale" }, `other rows: ${said(base)} on average`),
        element("table", {}, element("tbody", {}, pushes.map(([one, its]) => line(name(one), its)), count ? line(element("span", { class: "pale" }, `${count} other ${count === 1 ? "column" : "columns"}`), rest) : null)));
    };
    const what = target.labels ? "the probability of the predicted class" : ["the predicted ", foreign(target.target)];
    const windows = model.windows ? " All rows of a window count; the values are those of its last row." : "";
    return [element("h3", {}, "What pushed these predictions"),
      element("p", {}, "What each column adds to ", what, ", compared with other rows for validation. Bars to the right raise it, bars to the left lower it."),
      sorts.map((sort) => [element("h4", {}, sort.sort), element("div", { class: "pushes" }, sort.rows.map(card))]),
      element("p", { class: "pale" }, `The mean of the other rows and all numbers add up to the prediction, as in cerebro.explain. This is what the model does, not what causes the target.${windows}`)];
  }

  function columns(model) {
    const rows = model.columns.map((one) => element("tr", {}, element("td", {}, foreign(one.column)), element("td", {}, one.use), element("td", {}, foreign(one.type)), element("td", { class: "long" }, foreign(one.prepared))));
    const counted = (count, what) => `${isNumber(count) ? count.toLocaleString("en") : "no"} ${what}`;
    const w = model.windows, list = (names) => names.join(", ");
    const what = w ? "windows" : "rows";
    return section("Columns", element("p", {}, `${counted(model.rows.training, what)} for training, ${counted(model.rows.validation, what)} for validation.`),
      w ? element("p", {}, foreign(`A window is ${w.length} consecutive rows${w.by.length ? ` of one ${list(w.by)}` : ""}, by ${list(w.order)}${w.horizon ? `; the target is that of the row ${w.horizon} later` : ""}.`)) : null,
      rows.length ? table(["column", "use", "type", "what is made of it"], rows, { label: "Columns" }) : null);
  }

  function statements(model) {
    if (!model.statements.length) return null;
    // Without a right to the clipboard, as in some browsers from a file, the text is selected.
    const copy = (place) => {
      const made = element("button", { type: "button", onclick: () => {
        getSelection().selectAllChildren(place);
        (navigator.clipboard ? navigator.clipboard.writeText(place.textContent) : Promise.reject()).then(() => { made.textContent = "Copied"; }, () => { made.textContent = "Selected"; });
      } }, "Copy");
      return made;
    };
    return section("Predict with it", model.statements.map((one) => {
      const text = element("pre", { class: "text" }, one.text);
      return element("div", {}, element("div", { class: "controls" }, element("span", { class: "pale" }, one.language), copy(text)), text);
    }));
  }

  function lineage(run, model) {
    const entries = new Map(run.leaderboard.filter((entry) => entry.fold === null && entry.group_number === null).map((entry) => [entry.configuration, entry]));
    const rows = [
      ["run", `${run.run}${run.name ? `: ${run.name}` : ""}`], ["source table", run.source_table], ["packed rows", model.packed_tables.filter(Boolean).join(", ")],
      ["trained", moment(run.ended_at || run.started_at)], ["model table", `${model.model_table}, ${rounded((model.bytes || 0) / 1e6)} MB`],
      ["configuration", `${model.configuration}${model.made_of ? `, ${model.made_of}` : entries.has(model.configuration) ? `: ${entries.get(model.configuration).words || ""}` : ""}`],
    ].map(([name, value]) => element("tr", {}, element("td", {}, name), element("td", { class: "long" }, foreign(value))));
    const parts = [table([], rows, { label: "Lineage" })];
    const result = (entry) => (isNumber(entry.validation_rmse) ? `RMSE ${rounded(entry.validation_rmse)}` : `${run.objective} ${rounded(entry.objective_value)}`);
    if (model.members.length) {
      parts.push(element("h3", {}, "Members of the ensemble"), element("ul", {}, model.members.map((one) =>
        element("li", {}, foreign(entries.has(one) ? `${about(entries.get(one))}, ${result(entries.get(one))}` : `configuration ${one}`)))));
    }
    parts.push(element("h3", {}, "Versions in the registry"));
    if (!model.versions.length) parts.push(element("p", {}, "The model is not registered."), element("pre", { class: "text" }, `SELECT cerebro.register('a_name', '${model.model_table.replaceAll("'", "''")}', alias => 'production');`));
    else {
      parts.push(table(["model", number("version"), "aliases", number("configuration"), "registered", "quality"], model.versions.map((one) => element("tr", {}, element("td", {}, foreign(one.registered_model)), figure(one.version), element("td", {}, foreign(one.aliases)),
        figure(one.configuration), element("td", {}, moment(one.registered_at), one.unregistered_at ? ", unregistered" : ""), element("td", { class: "long" }, foreign(one.quality)))), { label: "Versions in the registry" }));
    }
    return section("Lineage and versions", parts);
  }

  function tiles(target, several) {
    const found = FIRST.map((name) => target.metrics.find((one) => one.metric === name)).filter((one) => one && isNumber(one.value)).slice(0, 4);
    return found.map((one) => element("div", {}, element("dt", {}, `${METRICS[one.metric]}`, several ? foreign(`, ${target.target}`) : null), element("dd", { "data-model-fact": one.metric, "data-value": one.value, title: String(one.value) }, measured(one.metric, one.value)),
      isNumber(one.low) ? element("dd", { class: "small" }, between(one.metric, one)) : null, isNumber(one.baseline) ? element("dd", { class: "small" }, `simple answer: ${measured(one.metric, one.baseline)}`) : null,
      one.metric === "rmse" && target.last_known ? element("dd", { class: "small" }, `last known value: ${rounded(target.last_known.rmse)}`) : null));
  }

  function part(run, ends) {
    const { model } = run;
    if (model.why) return element("p", { class: "pale", id: "no-model" }, foreign(model.why));
    const several = model.targets.length > 1;
    // A section for each target, or one if there is a single target.
    const of = (title, make) => model.targets.map((target) => {
      const made = make(target);
      return made && section(several ? `${title} (${target.target})` : title, made);
    });
    const judged = model.judged_why ? section("How good it is", element("p", { class: "notice" }, foreign(`The model cannot be judged here: ${model.judged_why}`))) : null;
    return element("div", { id: "model" },
      model.targets.length ? element("dl", { class: "tiles" }, model.targets.map((target) => tiles(target, several))) : null,
      judged, of("How good it is", metrics),
      model.not_judged && model.not_judged.length ? element("p", { class: "pale" }, foreign(`Not judged here: ${model.not_judged.join(", ")}.`)) : null,
      of("Confusion matrix", (target) => target.confusion && confusion(target)),
      of("ROC and precision", (target) => target.curves && curves(target, ends)),
      of("Calibration", (target) => target.reliability && target.reliability.length && calibration(target, ends)),
      of("Predictions and errors", (target) => target.residuals && residuals(target, ends)),
      importance(model), of("Example predictions", (target) => examples(target, model)), statements(model), columns(model), lineage(run, model));
  }
  return part;
};
