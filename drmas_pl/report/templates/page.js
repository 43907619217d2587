"use strict";
// Everything that a model or an environment wrote reaches the page through text nodes and attributes of fixed names alone.
const data = JSON.parse(document.getElementById("data").textContent);
const index = data.index;
const rowCount = index.run.length;
const several = data.runs.length > 1;
const COLOURS = 7;
const DASHES = ["", "7 3", "2 3", "9 3 2 3", "12 4", "1 2", "5 2 1 2 1 2"];
const OUTCOMES = ["right", "wrong", "truncated", "failed"];
const SIGNS = { right: "✓", wrong: "✗", truncated: "⧖", failed: "!" };
const INVALID = 1, EMPTY = 2, CUT = 4, UNTRAINED = 8;
const ROW_HEIGHT = 76;
// of a graph: edges, and letters of a name
const MOST_EDGES = 24, MOST_LETTERS = 16;
const NARROW = matchMedia("(max-width: 760px)");
const SVG = "http://www.w3.org/2000/svg";

// ---------------------------------------------------------------- elements

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") {
      for (const [event, handler] of Object.entries(value)) node.addEventListener(event, handler);
    } else {
      node.setAttribute(name, value === true ? "" : value);
    }
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

function el(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function percent(share, digits = 1) {
  return `${(100 * share).toFixed(digits)} %`;
}

function short(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 10000) return value.toExponential(1);
  if (size >= 100) return value.toFixed(0);
  if (size >= 10) return value.toFixed(1);
  if (size >= 0.01) return value.toFixed(2);
  return value.toExponential(1);
}

function counted(number, one, several = `${one}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : several}`;
}

function duration(minutes) {
  if (minutes < 2) return `${(60 * minutes).toFixed(0)} s`;
  return minutes < 120 ? `${minutes.toFixed(1)} min` : `${(minutes / 60).toFixed(1)} h`;
}

function signed(value, digits = 2) {
  if (value === 0) return "0";
  return (value < 0 ? "−" : "+") + Math.abs(value).toFixed(digits);
}

function table(head, rows, numeric = []) {
  const cell = (tag, value, place) =>
    el(tag, { class: numeric.includes(place) ? "number" : null, scope: tag === "th" ? "col" : null }, value);
  return el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": head.join(", ") },
    el("table", {},
      el("thead", {}, el("tr", {}, head.map((value, place) => cell("th", value, place)))),
      el("tbody", {}, rows.map((row) => el("tr", {}, row.map((value, place) => cell("td", value, place)))))));
}

/** A setting's name that may be broken behind its dots and underscores. */
function breakable(name) {
  return name.split(/(?<=[._])/).flatMap((part) => [part, el("wbr")]);
}

function section(title, id, ...children) {
  return el("section", { id, "aria-label": title }, el("h2", {}, title), children);
}

function idOf(name, run) {
  return several ? `${name}-${data.runs.indexOf(run)}` : name;
}

// ---------------------------------------------------------------- markers: the second code beside colour

function marker(code, x, y, colour, size = 3) {
  const kind = code % 6;
  const attributes = { class: `f${colour}` };
  if (kind === 0) return svg("circle", { ...attributes, cx: x, cy: y, r: size });
  if (kind === 1) {
    return svg("rect", { ...attributes, x: x - size, y: y - size, width: 2 * size, height: 2 * size });
  }
  const shapes = {
    2: [[0, -1.2], [1.2, 1], [-1.2, 1]],
    3: [[0, -1.4], [1.4, 0], [0, 1.4], [-1.4, 0]],
    4: [[-1.2, -1], [1.2, -1], [0, 1.2]],
    5: [[-1.3, -0.45], [-0.45, -0.45], [-0.45, -1.3], [0.45, -1.3], [0.45, -0.45], [1.3, -0.45], [1.3, 0.45],
      [0.45, 0.45], [0.45, 1.3], [-0.45, 1.3], [-0.45, 0.45], [-1.3, 0.45]],
  };
  const points = shapes[kind].map(([dx, dy]) => `${x + dx * size},${y + dy * size}`).join(" ");
  return svg("polygon", { ...attributes, points });
}

function agentMark(agent) {
  return svg("svg", { viewBox: "0 0 14 14", "aria-hidden": "true" }, marker(agent, 7, 7, agent % COLOURS, 4.5));
}

// ---------------------------------------------------------------- first screen

function drawHead() {
  const head = document.getElementById("head");
  const run = data.runs[0];
  const played = run.planned && !run.finished ? `${run.iteration} of ${run.planned} iterations` : counted(run.iteration, "iteration");
  const preset = run.preset.filter(Boolean).join(" · ");
  const metric = run.metric === "success" ? "" : `, success = ${run.metric}`;
  const memory = run.memory ? `, peak memory ${(run.memory / 1024).toFixed(1)} GB` : "";
  const line = several
    ? `${data.runs.map((one) => one.name).join(" · ")}`
    : `${preset}${preset ? " — " : ""}${played}, ${duration(run.minutes)}${memory}${metric}`;
  head.append(el("h1", {}, data.title), el("p", { class: "muted" }, line, ` — page of ${data.made}`));
  return head;
}

function intervalText(score) {
  return score[1] === score[2] ? "" : `[${(100 * score[1]).toFixed(1)}, ${(100 * score[2]).toFixed(1)}]`;
}

function changeText(before, after) {
  return before === null ? percent(after[0]) : `${percent(before[0])} → ${percent(after[0])}`;
}

function outcomeTile(outcome, words) {
  const lines = [];
  if (outcome.before) {
    const points = 100 * (outcome.after[0] - outcome.before[0]);
    lines.push(`${signed(points, 1)} points`);
    if (intervalText(outcome.after)) lines.push(`95 %: ${intervalText(outcome.before)} → ${intervalText(outcome.after)}`);
  } else {
    lines.push("one evaluation so far");
    if (intervalText(outcome.after)) lines.push(`95 %: ${intervalText(outcome.after)}`);
  }
  if (outcome.tasks) lines.push(`${counted(outcome.tasks, "task")}, iterations ${outcome.iterations.join(" → ")}`);
  const { right, wrong } = words;
  if (outcome.changed) lines.push(`${wrong} → ${right} ${outcome.changed[0]}, ${right} → ${wrong} ${outcome.changed[1]}`);
  return el("div", { class: "card tile" },
    el("b", {}, changeText(outcome.before, outcome.after)), el("span", {}, outcome.label),
    lines.map((line) => el("div", { class: "muted small" }, line)));
}

/** A number of every agent, before and after. */
function agentsTile(run, label, values) {
  if (!values.some(Boolean)) return null;
  const rows = run.agents.map((agent, place) => values[place] && el("tr", {},
    el("th", { scope: "row" }, agentMark(place), agent),
    el("td", { class: "number" }, values[place][0].toFixed(2)), el("td", {}, "→"),
    el("td", { class: "number" }, el("strong", {}, values[place][1].toFixed(2)))));
  return el("div", { class: "card tile" }, el("table", { class: "plain" }, el("caption", {}, label), el("tbody", {}, rows)));
}

function drawOutcome(run) {
  const tiles = [...run.outcomes.map((outcome) => outcomeTile(outcome, run.words)),
    agentsTile(run, "calls per trajectory", run.calls), agentsTile(run, "reward paid to the agent itself", run.paid)].filter(Boolean);
  const body = tiles.length ? tiles : el("p", { class: "muted" }, "Nothing was scored so far.");
  return el("section", { id: idOf("outcome", run), "aria-label": "Outcome, before → after", class: "grid tiles" }, body);
}

function drawHealth(run) {
  const names = { bad: "Problem", warning: "Warning", good: "Well", state: "State" };
  return el("ul", { class: "health" }, run.health.map((finding) =>
    el("li", { class: finding.level }, el("b", {}, `${names[finding.level]}: ${finding.title}.`), finding.text)));
}

// ---------------------------------------------------------------- curves

function niceTicks(low, high) {
  const span = high - low || Math.abs(high) || 1;
  const raw = span / 3;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((value) => value >= raw);
  const first = Math.floor(low / step + 1e-9) * step;
  const ticks = [];
  for (let tick = first; tick < high + step * 0.999; tick += step) ticks.push(Math.abs(tick) < step * 1e-6 ? 0 : tick);
  if (ticks.length < 2) ticks.push(first + step);
  return ticks;
}

/** One picture. Each series has label, colour, code and points. */
function drawChart(chart, series) {
  const width = 264, height = 164, left = 46, right = 8, top = 8, bottom = 22;
  const points = series.flatMap((one) => one.points);
  const xs = points.map((point) => point[0]);
  const ys = points.map((point) => point[1]);
  const [xLow, xHigh] = [Math.min(...xs), Math.max(...xs)];
  const [lowest, highest] = [Math.min(...ys, chart.share ? 0 : Infinity), Math.max(...ys)];
  const margin = lowest === highest && !chart.share ? Math.abs(lowest) / 2 || 0.5 : 0;
  const ticks = niceTicks(lowest - margin, highest + margin);
  const [yLow, yHigh] = [ticks[0], ticks[ticks.length - 1]];
  const x = (value) => left + (width - left - right) * (xHigh === xLow ? 0.5 : (value - xLow) / (xHigh - xLow));
  const y = (value) => height - bottom - (height - top - bottom) * (value - yLow) / (yHigh - yLow);
  const write = (value) => (chart.share ? percent(value) : short(value));
  const first = (one) => one.points[0][1];
  const last = (one) => one.points[one.points.length - 1][1];
  const said = series.map((one) => `${one.label} ${write(first(one))} to ${write(last(one))}`).join("; ");
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${chart.title}: ${said}` });
  for (const tick of ticks) {
    picture.append(
      svg("line", { class: "rule", x1: left, x2: width - right, y1: y(tick), y2: y(tick) }),
      svg("text", { class: "tick", x: left - 5, y: y(tick) + 4, "text-anchor": "end" },
        chart.share ? percent(tick, 0) : short(tick)));
  }
  picture.append(
    svg("text", { class: "tick", x: left, y: height - 6 }, xLow),
    svg("text", { class: "tick", x: width - right, y: height - 6, "text-anchor": "end" }, `iteration ${xHigh}`));
  for (const one of series) {
    const path = one.points.map((point) => `${x(point[0]).toFixed(1)},${y(point[1]).toFixed(1)}`).join(" ");
    picture.append(svg("polyline",
      { class: `curve s${one.colour}`, points: path, "stroke-dasharray": DASHES[one.code % DASHES.length] || null }));
    const stride = Math.max(1, Math.ceil(one.points.length / 8));
    one.points.forEach((point, place) => {
      const shown = place % stride === 0 || place === one.points.length - 1;
      if (shown) picture.append(marker(one.code, x(point[0]), y(point[1]), one.colour, 2.8));
    });
  }
  const cursor = svg("line", { class: "cursor", y1: top, y2: height - bottom, visibility: "hidden" });
  picture.append(cursor);
  const values = series.map((one) => el("output", {}, write(last(one))));
  const show = (event) => {
    const box = picture.getBoundingClientRect();
    const at = xLow + (xHigh - xLow) * Math.min(1, Math.max(0,
      ((event.clientX - box.left) / box.width * width - left) / (width - left - right)));
    const nearest = xs.reduce((best, value) => (Math.abs(value - at) < Math.abs(best - at) ? value : best), xs[0]);
    cursor.setAttribute("x1", x(nearest));
    cursor.setAttribute("x2", x(nearest));
    cursor.setAttribute("visibility", "visible");
    series.forEach((one, place) => {
      const point = one.points.find((pair) => pair[0] === nearest);
      values[place].textContent = point ? write(point[1]) : "–";
    });
  };
  const rest = () => {
    cursor.setAttribute("visibility", "hidden");
    series.forEach((one, place) => { values[place].textContent = write(last(one)); });
  };
  picture.addEventListener("pointermove", show);
  picture.addEventListener("pointerleave", rest);
  const legend = el("ul", { class: "legend" }, series.map((one, place) => el("li", {},
    svg("svg", { viewBox: "0 0 30 12", "aria-hidden": "true" },
      svg("line", { class: `curve s${one.colour}`, x1: 0, x2: 30, y1: 6, y2: 6,
        "stroke-dasharray": DASHES[one.code % DASHES.length] || null }),
      marker(one.code, 15, 6, one.colour, 3)),
    el("span", {}, one.label), values[place])));
  return el("figure", { class: "card" },
    el("h3", {}, chart.title), el("div", { class: "muted small" }, `healthy: ${chart.healthy}`), picture, legend);
}

function drawCharts() {
  const keys = [...new Set(data.runs.flatMap((run) => run.charts.map((chart) => chart.key)))];
  const cards = keys.map((key) => {
    const charts = data.runs.map((run) => run.charts.find((chart) => chart.key === key));
    const series = charts.flatMap((chart, place) => (chart ? chart.series : []).map((one) => ({
      label: several ? `${data.runs[place].name.split("/").pop()} ${one.label}` : one.label,
      colour: (several ? place : one.agent ?? (one.code === 0 ? 5 : one.code - 1)) % COLOURS,
      code: one.code,
      points: one.points,
    })));
    return drawChart(charts.find(Boolean), series);
  });
  if (!cards.length) return el("p", { class: "muted" }, "No metrics were recorded so far.");
  return el("div", { class: "grid charts" }, cards);
}

// ---------------------------------------------------------------- the team as a graph

/** Agents of a move: several that move at once share a node. Its lines are labels with the position of the agent. */
function readMove(name, run) {
  if (run.agents.includes(name)) return [[name, run.agents.indexOf(name)]];
  if (["start", "right", "wrong"].includes(name)) return [[SIGNS[name] ? `${SIGNS[name]} ${run.words[name]}` : name, -1]];
  return name.split(" + ").map((part) => [part, run.agents.indexOf(part.replace(/ ×\d+$/, ""))]);
}

/** Places of the nodes: from start to outcome along the longer side, agents to and fro on their way. */
function layout(nodes, run, narrow) {
  const ends = ["start", "right", "wrong"];
  const order = (name) => readMove(name, run)[0][1];
  const inner = nodes.filter((name) => !ends.includes(name)).sort((a, b) => order(a) - order(b));
  const tall = Math.max(1, ...inner.map((name) => readMove(name, run).length));
  const [length, breadth] = narrow ? [210 + inner.length * (60 + 26 * tall), 340] : [640, Math.max(250, 170 + 30 * tall)];
  const [head, tail] = narrow ? [30, 30] : [58, 58];
  const place = { start: [head, 0.5], right: [length - tail, narrow ? 0.22 : 0.2], wrong: [length - tail, narrow ? 0.78 : 0.8] };
  inner.forEach((name, number) => {
    const along = inner.length === 1 ? 0.5 : number / (inner.length - 1);
    const [first, last] = narrow ? [100 + 13 * tall, length - 100 - 13 * tall] : [180, length - 190];
    place[name] = [first + (last - first) * along, inner.length === 1 ? 0.5 : [0.24, 0.76][number % 2]];
  });
  for (const name of Object.keys(place)) {
    const [along, across] = place[name];
    place[name] = narrow ? [across * breadth, along] : [along, across * breadth];
  }
  return { place, width: narrow ? breadth : length, height: narrow ? length : breadth };
}

/** Where the line from a point to a node's centre enters the node. */
function border([cx, cy], [fx, fy], [halfWidth, halfHeight]) {
  const dx = fx - cx, dy = fy - cy;
  const scale = 1 / Math.max(Math.abs(dx) / halfWidth, Math.abs(dy) / halfHeight, 1e-6);
  return [cx + dx * scale, cy + dy * scale];
}

/** Path of an edge, its head, and places for its label, the best first. */
function route(a, b, sizeA, sizeB, middleY) {
  if (a === b && NARROW.matches) {
    const x = a[0] + sizeA[0];
    return {
      path: `M${x},${a[1] - 12} C${x + 38},${a[1] - 34} ${x + 38},${a[1] + 34} ${x + 6},${a[1] + 12}`,
      tip: [x, a[1] + 12], angle: Math.PI - 0.4, labels: [[x + 30, a[1]]],
    };
  }
  if (a === b) {
    const up = a[1] < middleY + 1 ? -1 : 1;
    const y = a[1] + up * sizeA[1];
    return {
      path: `M${a[0] - 18},${y} C${a[0] - 40},${y + up * 38} ${a[0] + 40},${y + up * 38} ${a[0] + 18},${y + up * 6}`,
      tip: [a[0] + 18, y], angle: Math.atan2(-up, -0.4), labels: [[a[0], y + up * 28], [a[0] + 44, y + up * 16]],
    };
  }
  const dx = b[0] - a[0], dy = b[1] - a[1], far = Math.hypot(dx, dy);
  const bend = 20 + far * 0.08;
  const control = [(a[0] + b[0]) / 2 - dy / far * bend, (a[1] + b[1]) / 2 + dx / far * bend];
  const start = border(a, control, sizeA);
  const tip = border(b, control, [sizeB[0] + 1, sizeB[1] + 1]);
  const angle = Math.atan2(tip[1] - control[1], tip[0] - control[0]);
  const end = [tip[0] - 9 * Math.cos(angle), tip[1] - 9 * Math.sin(angle)];
  const at = (t) => [0, 1].map((axis) => (1 - t) ** 2 * start[axis] + 2 * t * (1 - t) * control[axis] + t * t * end[axis]);
  return { path: `M${start} Q${control} ${end}`, tip, angle, labels: [0.5, 0.4, 0.6, 0.3, 0.7, 0.22, 0.78].map(at) };
}

function drawGraph(run, view) {
  const strongest = view.edges.slice(0, MOST_EDGES);
  const nodes = [...new Set(["start", ...run.agents, ...strongest.flatMap((edge) => edge.slice(0, 2)), "right", "wrong"])]
    .filter((name) => strongest.some((edge) => edge[0] === name || edge[1] === name));
  const { place, width, height } = layout(nodes, run, NARROW.matches);
  const size = Object.fromEntries(nodes.map((name) => {
    const lines = readMove(name, run);
    const letters = Math.max(...lines.map(([label]) => Math.min(label.length, MOST_LETTERS)));
    return [name, [Math.max(36, 5 + 4.3 * letters + (lines[0][1] < 0 ? 0 : 9)), 5 + 12 * lines.length]];
  }));
  const most = Math.max(...strongest.map((edge) => edge[2]));
  const said = view.edges.map(([from, to, rate]) => `${from} to ${to} ${rate.toFixed(2)}`).join("; ");
  const picture = svg("svg",
    { class: "graph", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Calls per trajectory: ${said}` });
  const taken = nodes.map((name) => [...place[name], ...size[name]]);
  const free = ([x, y]) => taken.every(([cx, cy, w, h]) => Math.abs(x - cx) > w + 15 || Math.abs(y - cy) > h + 8);
  const labels = [];
  for (const [from, to, rate] of strongest) {
    const { path, tip, angle, labels: choices } = route(place[from], place[to], size[from], size[to], height / 2);
    const side = (turn) => [tip[0] + 12 * Math.cos(angle + turn), tip[1] + 12 * Math.sin(angle + turn)];
    picture.append(svg("path", { class: "edge", d: path, "stroke-width": (1 + 6 * rate / most).toFixed(1) }),
      svg("polygon", { class: "head", points: [tip, side(Math.PI - 0.45), side(Math.PI + 0.45)].join(" ") }));
    const [x, y] = choices.find(free) || choices[0];
    taken.push([x, y, 15, 8]);
    labels.push(svg("text", { class: "rate", x, y: y + 5, "text-anchor": "middle" }, rate.toFixed(2)));
  }
  for (const name of nodes) picture.append(...drawNode(readMove(name, run), place[name], size[name]));
  picture.append(...labels);
  return picture;
}

function drawNode(lines, [x, y], [halfWidth, halfHeight]) {
  const only = lines.length === 1 ? lines[0][1] : -1;
  const parts = [svg("rect", {
    class: `node ${only < 0 ? "end" : `s${only % COLOURS}`}`, x: x - halfWidth, y: y - halfHeight, width: 2 * halfWidth,
    height: 2 * halfHeight, rx: 8,
  })];
  lines.forEach(([label, agent], number) => {
    const clipped = label.length > MOST_LETTERS ? `${label.slice(0, MOST_LETTERS - 1)}…` : label;
    const at = y - halfHeight + 5 + 12 + 24 * number;
    parts.push(svg("text", { x: x + (agent < 0 ? 0 : 9), y: at + 5, "text-anchor": "middle" }, clipped));
    if (agent >= 0) parts.push(marker(agent, x - halfWidth + 11, at, agent % COLOURS, 5));
  });
  return parts;
}

function drawTeam(run) {
  if (!run.graphs.length) {
    return el("p", { class: "muted" }, "No trajectories were recorded; set trainer.record=[validation].");
  }
  const body = el("div", {});
  const show = (graph) => {
    const [before, after] = [graph.views[0], graph.views[graph.views.length - 1]];
    const cards = graph.views.map((view, place) => el("div", { class: "card" },
      el("h3", {}, graph.views.length === 1 ? `iteration ${view.iteration}`
        : `${["before", "after"][place]} (iteration ${view.iteration}), ${counted(view.episodes, "trajectory", "trajectories")}`),
      drawGraph(run, view)));
    const most = Math.max(before.edges.length, after.edges.length);
    const rate = (view, from, to) => (view.edges.find((edge) => edge[0] === from && edge[1] === to) || [0, 0, 0])[2];
    const pairs = [...new Map([...after.edges, ...before.edges].map((edge) => [`${edge[0]}\n${edge[1]}`, edge])).values()];
    const rows = pairs.map(([from, to]) => [`${from} → ${to}`, rate(before, from, to).toFixed(3), rate(after, from, to).toFixed(3)]);
    body.replaceChildren(el("div", { class: "grid halves" }, cards),
      most > MOST_EDGES ? el("p", { class: "muted small" }, `The ${MOST_EDGES} most frequent calls are drawn; the table has all.`) : "",
      el("details", {}, el("summary", {}, "Rates as a table"), table(["call", "before", "after"], rows, [1, 2])));
  };
  let current = run.graphs[0];
  show(current);
  NARROW.addEventListener("change", () => show(current));
  const choices = el("div", { class: "views" }, run.graphs.map((graph, place) => {
    const button = el("button", { type: "button", "aria-pressed": String(place === 0) }, graph.phase);
    button.addEventListener("click", () => {
      for (const other of choices.children) other.setAttribute("aria-pressed", String(other === button));
      current = graph;
      show(graph);
    });
    return button;
  }));
  return [run.graphs.length > 1 ? choices : null, body];
}

// ---------------------------------------------------------------- settings, time, several runs

function drawSettings(run) {
  const preset = run.preset.filter(Boolean).join(" and ") || "the defaults";
  if (!run.configured) return el("p", { class: "muted" }, "There is no config.yaml: the run was started from Python.");
  if (!run.settings.length) return el("p", {}, `Everything is as in the presets of ${preset}.`);
  return table(["setting", "preset", "this run"], run.settings.map(([name, ...values]) => [breakable(name), ...values]));
}

function drawStages(run) {
  if (!run.stages.length) return el("p", { class: "muted" }, "No stage has ended so far.");
  const most = Math.max(...run.stages.map((stage) => stage[1]));
  const rows = run.stages.map(([stage, seconds, count]) => {
    const bar = el("div", { class: "bar" });
    bar.style.width = `${(120 * seconds / (most || 1)).toFixed(1)}px`;
    return [stage, bar, `${seconds.toFixed(1)} s`, `${(seconds / count).toFixed(2)} s × ${count}`];
  });
  const memory = run.memory ? `Peak memory of the process: ${(run.memory / 1024).toFixed(2)} GB.`
    : "Peak memory is recorded when the run ends.";
  return [table(["stage", "", "altogether", "each"], rows, [2, 3]), el("p", { class: "muted small" }, memory)];
}

function drawRun(run) {
  return [drawOutcome(run), section("Health", idOf("health", run), drawHealth(run))];
}

function drawDetails(run) {
  const failures = run.failures
    ? el("details", {}, el("summary", {}, "Last lines of failures.log"), el("pre", { dir: "auto", tabindex: "0" }, run.failures))
    : null;
  return [
    section("Who calls whom, per trajectory", idOf("team", run), drawTeam(run)),
    el("div", { class: "grid halves" },
      section("Settings that differ from the presets", idOf("settings", run), drawSettings(run)),
      section("Time and memory", idOf("time", run), drawStages(run), failures)),
  ];
}

function drawDifferences(settings) {
  if (!settings.length) return el("p", { class: "muted" }, "None.");
  const rows = table(["setting", ...data.runs.map((run) => run.name.split("/").pop())],
    settings.map(([name, ...values]) => [breakable(name), ...values]));
  return settings.length <= 15 ? rows : el("details", {}, el("summary", {}, `${settings.length} settings`), rows);
}

function drawComparison() {
  const scores = data.runs.map((run) => [
    run.name,
    run.finished ? "finished" : "not finished",
    ...["validation", "validation-greedy"].map((split) => {
      const outcome = run.outcomes.find((one) => one.split === split);
      return outcome ? `${changeText(outcome.before, outcome.after)} ${intervalText(outcome.after)}` : "–";
    }),
    String(run.iteration),
    run.minutes.toFixed(1),
  ]);
  const seeds = data.comparison.groups.flatMap((group) => group.scores.map((score) => {
    const write = (value) => (value === null ? "–" : `${percent(value[0])} ${score.seeds > 1 ? intervalText(value) : ""}`);
    return [group.label, score.label, write(score.before), write(score.after), String(score.seeds)];
  }));
  return [
    section("Runs", "runs", table(["run", "state", "validation, sampled", "validation, greedy", "iterations", "minutes"],
      scores, [4, 5])),
    section("Seeds: mean and 95 % interval over runs that differ by their seed alone", "seeds",
      table(["settings", "score", "before", "after", "runs"], seeds, [2, 3, 4])),
    section("Settings that differ between the runs", "differences", drawDifferences(data.comparison.settings)),
  ];
}

// ---------------------------------------------------------------- conversations: data

let lines = null;

function body(row) {
  if (lines === null) lines = document.getElementById("bodies").textContent.split("\n");
  const [cause, metrics, turns, rewards, candidates] = JSON.parse(lines[row]);
  return { cause, metrics, turns: turns.map(readTurn), rewards, candidates: candidates.map(readTurn) };
}

function readTurn(turn) {
  const [agent, text, status, action, verdict, reason, finish, observation, reward, local, advantage, prompt,
    promptTokens, tokens, logprobs, promptTruncated, own, move, place, candidate, parent] = turn;
  return { agent, text, status, action, verdict, reason, finish, observation, reward, local, advantage, prompt,
    promptTokens, tokens, logprobs, promptTruncated, own, move, place, candidate, parent };
}

const run = (row) => data.runs[index.run[row]];
const phase = (row) => index.phases[index.phase[row]];
const task = (row) => index.tasks[index.task[row]];
const outcomeName = (row) => OUTCOMES[index.outcome[row]];

let pairs = null;

/** First and last recorded play of the same task, sample and phase. */
function pairOf(row) {
  if (pairs === null) {
    pairs = new Map();
    for (let other = 0; other < rowCount; other++) {
      const key = pairKey(other);
      const found = pairs.get(key);
      if (!found) pairs.set(key, [other, other]);
      else {
        if (index.iteration[other] < index.iteration[found[0]]) found[0] = other;
        if (index.iteration[other] > index.iteration[found[1]]) found[1] = other;
      }
    }
  }
  return pairs.get(pairKey(row));
}

function pairKey(row) {
  return `${index.run[row]} ${index.phase[row]} ${index.task[row]} ${index.sample[row]}`;
}

function groupOf(row) {
  const found = [];
  for (let other = 0; other < rowCount; other++) {
    const same = index.task[other] === index.task[row] && index.phase[other] === index.phase[row]
      && index.run[other] === index.run[row] && index.iteration[other] === index.iteration[row];
    if (same) found.push(other);
  }
  return found;
}

// ---------------------------------------------------------------- conversations: one dialogue

function badge(row) {
  const name = outcomeName(row);
  return el("span", { class: `badge ${name}` }, `${SIGNS[name]} ${run(row).words[name] || name}`);
}

function logprobStrip(logprobs, tokens) {
  if (!logprobs.length) return null;
  const known = logprobs.filter((value) => value !== null);
  const total = known.reduce((sum, value) => sum + value, 0);
  const level = (value) => (value === null ? 4 : [-0.05, -0.5, -1.5, -4].findIndex((bound) => value >= bound));
  const strip = el("div", { class: "tokens", role: "img",
    "aria-label": `Log-probabilities of ${tokens} sampled tokens, mean ${(total / Math.max(1, known.length)).toFixed(2)} nats` });
  logprobs.forEach((value, place) => {
    const found = level(value);
    const said = value === null ? "not finite" : `${value.toFixed(3)} nats, p = ${percent(Math.exp(value))}`;
    strip.append(el("i", { class: `lp${found < 0 ? 4 : found}`, title: `token ${place + 1} of ${tokens}: log p ${said}` }));
  });
  return strip;
}

function advantageChip(turn, training) {
  if (turn.advantage === null) {
    return training ? el("span", { class: "chip alert" }, "not trained (masked)") : null;
  }
  const tone = turn.advantage > 0 ? "pos" : turn.advantage < 0 ? "neg" : "";
  const strong = Math.abs(turn.advantage) >= 1 ? "strong" : "";
  return el("span", { class: `chip ${tone} ${strong}` }, `advantage ${signed(turn.advantage)}`);
}

function textBlock(text, label) {
  return el("pre", { dir: "auto", tabindex: text.length > 1500 ? "0" : null, "aria-label": label }, text);
}

function drawTurn(row, turn) {
  const training = phase(row) === "train";
  const masked = training && turn.advantage === null;
  const empty = !turn.text.trim();
  const chips = [
    turn.status !== "valid" && el("span", { class: "chip alert" }, `${turn.status}${turn.reason ? `: ${turn.reason}` : ""}`),
    empty && el("span", { class: "chip alert" }, "empty"),
    turn.finish === "length" && el("span", { class: "chip alert" }, "cut at the limit of tokens"),
    turn.finish === "abort" && el("span", { class: "chip alert" }, "aborted"),
    turn.promptTruncated ? el("span", { class: "chip alert" }, "prompt lost history") : null,
    turn.verdict && el("span", { class: "chip" }, `verdict ${turn.verdict}`),
    turn.reward ? el("span", { class: "chip" }, `reward ${short(turn.reward)}`) : null,
    turn.own ? el("span", { class: "chip" }, `own reward ${short(turn.own)}`) : null,
    turn.local ? el("span", { class: "chip" }, `local reward ${short(turn.local)}`) : null,
    advantageChip(turn, training),
  ];
  const size = `${turn.promptTokens} → ${turn.tokens} tokens`;
  return el("article", { class: `turn b${turn.agent % COLOURS}${masked ? " masked" : ""}` },
    el("header", {}, agentMark(turn.agent), el("b", {}, run(row).agents[turn.agent]), chips,
      el("span", { class: "muted small" }, size)),
    turn.prompt === null ? null
      : el("details", {}, el("summary", {}, "Prompt"), textBlock(turn.prompt, "prompt")),
    textBlock(empty ? "(empty response)" : turn.text, "response"),
    turn.action === null ? null : [el("p", { class: "label" }, "parsed action"), textBlock(turn.action, "parsed action")],
    logprobStrip(turn.logprobs, turn.tokens));
}

function drawObservation(turn) {
  if (turn.observation === null) return null;
  return el("div", { class: "observation" }, el("p", { class: "label" }, "observation"), textBlock(turn.observation, "observation"));
}

/** Turns in moves: those of one move were taken at once. */
function movesOf(turns) {
  const moves = [];
  for (const turn of turns) {
    const last = moves[moves.length - 1];
    if (last && turn.move !== null && last[0].move === turn.move) last.push(turn);
    else moves.push([turn]);
  }
  return moves;
}

/** Candidates of a tree. Those of one prompt are siblings; below the chosen one, in a whole tree below each, are those of the next prompt. */
function drawTree(row) {
  const { turns, candidates } = body(row);
  const levels = [...new Set([...turns, ...candidates].map((turn) => turn.place))].sort((a, b) => a - b);
  const whole = candidates.some((turn) => turn.parent !== null);
  const spokenAt = (place) => turns.find((turn) => turn.place === place);
  const isSpoken = (turn) => {
    const spoken = spokenAt(turn.place);
    return Boolean(spoken) && spoken.candidate === turn.candidate && spoken.text === turn.text;
  };
  const childrenOf = (turn, depth) => {
    if (whole) return candidates.filter((other) => other.parent === (turn ? candidates.indexOf(turn) : null));
    const here = candidates.filter((other) => other.place === levels[depth]);
    return here.length || depth >= levels.length ? here : [spokenAt(levels[depth])];
  };
  const branch = (parent, depth, onPath) => {
    const siblings = childrenOf(parent, depth);
    if (!siblings.length) return null;
    return el("ul", { class: "tree" }, siblings.map((turn) => {
      const chosen = onPath && isSpoken(turn);
      const number = turn.candidate === null ? "sampled alone" : `candidate ${turn.candidate + 1} of ${siblings.length}`;
      const worth = whole ? `, worth ${short(turn.reward)}` : "";
      const label = `${number}${worth}${chosen && turn.candidate !== null ? ", chosen" : ""}`;
      const below = whole || chosen ? branch(turn, depth + 1, chosen) : null;
      return el("li", { class: chosen ? "chosen" : null }, el("p", { class: "label" }, label),
        chosen ? drawObservation(spokenAt(turn.place)) : null, drawTurn(row, turn),
        below && !chosen ? el("details", {}, el("summary", {}, "what followed"), below) : below);
    }));
  };
  return el("div", { class: "dialogue scroll", tabindex: "0", role: "group", "aria-label": "Tree of candidates" },
    el("h3", {}, badge(row), " ", el("span", { class: "muted" },
      `reward ${short(index.reward[row] ?? 0)}, ${counted(candidates.length, "candidate")}`)),
    whole ? el("p", { class: "muted small" }, "A candidate is worth the mean over what followed.") : null,
    branch(null, 0, true));
}

function drawDialogue(row, heading) {
  const content = body(row);
  const metrics = content.metrics.filter((pair) => pair[1] !== null).map(([name, value]) => `${name} ${short(value)}`);
  const paid = content.rewards.map(([name, value]) => `, ${name} ${value === null ? "–" : short(value)}`).join("");
  const line = `reward ${short(index.reward[row] ?? 0)}${paid}, ${counted(index.turns[row], "turn")}, ${counted(index.tokens[row], "token")}`;
  const parts = [
    el("h3", {}, heading ? `${heading} ` : "", badge(row), " ", el("span", { class: "muted" }, line)),
    el("p", { class: "muted small" }, `${phase(row)}, iteration ${index.iteration[row]}, sample ${index.sample[row]}`
      + (several ? `, ${run(row).name}` : "") + (metrics.length ? ` — ${metrics.join(", ")}` : "")),
  ];
  if (content.cause) parts.push(el("pre", { dir: "auto", tabindex: "0" }, content.cause));
  for (const turns of movesOf(content.turns)) {
    parts.push(...turns.map(drawObservation));
    const drawn = turns.map((turn) => drawTurn(row, turn));
    parts.push(turns.length === 1 ? drawn[0] : el("div", { class: "at-once", role: "group", "aria-label": "at once" },
      el("p", { class: "label" }, `${turns.length} turns at once`), el("div", {}, drawn)));
  }
  if (!content.turns.length) parts.push(el("p", { class: "muted" }, "Nobody spoke."));
  return el("div", { class: "dialogue" }, parts);
}

// ---------------------------------------------------------------- conversations: the browser

function drawConversations() {
  const held = data.runs.reduce((sum, one) => sum + one.kept, 0);
  const total = data.runs.reduce((sum, one) => sum + one.total, 0);
  const unread = data.runs.reduce((sum, one) => sum + one.unread, 0);
  if (!rowCount) {
    const why = total ? "None fits into the page." : "None was recorded; set trainer.record=[validation] or [train,validation].";
    return section("Conversations", "conversations", el("p", { class: "muted" }, why));
  }
  const agents = [...new Set(data.runs.flatMap((one) => one.agents))];
  const option = (value, label) => el("option", { value }, label);
  const select = (label, choices) => {
    const control = el("select", { "aria-label": label }, choices.map(([value, text]) => option(value, text)));
    return { control, label: el("label", {}, label, control) };
  };
  const sources = [...new Set(index.tasks.map((one) => one[1]))];
  const iterations = [...new Set(index.iteration)].sort((a, b) => a - b);
  const any = ["", "any"];
  const { words } = data.runs[0];
  const controls = {
    run: several ? select("run", [any, ...data.runs.map((one, place) => [place, one.name])]) : null,
    phase: select("phase", [any, ...index.phases.map((name, place) => [place, name])]),
    iteration: select("iteration", [any, ...iterations.map((value) => [value, value])]),
    outcome: select("outcome", [any, ...OUTCOMES.map((name, place) => [place, words[name] || name]),
      ["gain", `${words.wrong} → ${words.right}`], ["loss", `${words.right} → ${words.wrong}`]]),
    source: sources.length > 1 ? select("data source", [any, ...sources.map((name) => [name, name || "(none)"])]) : null,
    agent: select("agent spoke", [any, ...agents.map((name) => [name, name])]),
    validity: select("responses", [any, ["valid", "all valid"], [INVALID, "an invalid one"], [EMPTY, "an empty one"],
      [CUT, "one cut at the limit"], [UNTRAINED, "one not trained"]]),
  };
  const number = (label) => {
    const control = el("input", { type: "number", step: "any", "aria-label": label });
    return { control, label: el("label", {}, label, control) };
  };
  const bounds = {
    rewardLow: number("reward ≥"), rewardHigh: number("reward ≤"),
    turnsLow: number("turns ≥"), turnsHigh: number("turns ≤"),
    tokensLow: number("tokens ≥"), tokensHigh: number("tokens ≤"),
  };
  const field = (label, hint) => {
    const control = el("input", { type: "search", placeholder: hint, "aria-label": label });
    return { control, label: el("label", {}, label, control) };
  };
  const taskField = field("task", "question or id");
  const textField = field("text", "said or observed");
  const count = el("span", { role: "status", class: "muted" });
  const canvas = el("div", { role: "presentation" });
  const list = el("div", { class: "list", role: "listbox", tabindex: "0", "aria-label": "Conversations" }, canvas);
  const reader = el("div", { id: "reader", tabindex: "-1", "aria-live": "polite" });
  const tabs = el("div", { class: "views", role: "tablist", "aria-label": "View" });
  const title = el("div", {});
  const content = el("div", {});
  reader.append(title, tabs, content);
  let shown = [];
  let current = -1;
  let view = "one";

  function pattern(text) {
    // bodies are escaped JSON, so the text is escaped as they are
    const escaped = JSON.stringify(text).slice(1, -1).replace(/</g, "\\u003c").replace(/\u2028/g, "\\u2028").replace(/\u2029/g, "\\u2029");
    return new RegExp(escaped.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "i");
  }

  function change(row) {
    const [before, after] = pairOf(row);
    if (index.outcome[before] !== 0 && index.outcome[after] === 0) return "gain";
    return index.outcome[before] === 0 && index.outcome[after] !== 0 ? "loss" : "";
  }

  function filters() {
    const tests = [];
    const chosen = (name) => (controls[name] ? controls[name].control.value : "");
    for (const name of ["run", "phase", "iteration"]) {
      const value = chosen(name);
      if (value !== "") tests.push((row) => index[name][row] === Number(value));
    }
    const outcome = chosen("outcome");
    if (outcome === "gain" || outcome === "loss") tests.push((row) => change(row) === outcome);
    else if (outcome !== "") tests.push((row) => index.outcome[row] === Number(outcome));
    if (controls.source && controls.source.control.selectedIndex > 0) {
      tests.push((row) => task(row)[1] === chosen("source"));
    }
    const agent = chosen("agent");
    if (agent !== "") {
      // positions beyond 31 do not fit into the bits of an integer operation
      tests.push((row) => Math.floor(index.agents[row] / 2 ** run(row).agents.indexOf(agent)) % 2 === 1);
    }
    const validity = chosen("validity");
    if (validity === "valid") tests.push((row) => (index.flags[row] & (INVALID | EMPTY)) === 0);
    else if (validity !== "") tests.push((row) => (index.flags[row] & Number(validity)) !== 0);
    for (const name of ["reward", "turns", "tokens"]) {
      const low = bounds[`${name}Low`].control.value, high = bounds[`${name}High`].control.value;
      if (low !== "") tests.push((row) => index[name][row] >= Number(low));
      if (high !== "") tests.push((row) => index[name][row] <= Number(high));
    }
    if (taskField.control.value) {
      const wanted = taskField.control.value.toLowerCase();
      const hits = index.tasks.map((one) => one[0].toLowerCase().includes(wanted) || one[2].toLowerCase().includes(wanted));
      tests.push((row) => hits[index.task[row]]);
    }
    if (textField.control.value) {
      if (lines === null) lines = document.getElementById("bodies").textContent.split("\n");
      const found = pattern(textField.control.value);
      const plain = textField.control.value.toLowerCase();
      const hits = index.tasks.map((one) => one[2].toLowerCase().includes(plain));
      tests.push((row) => hits[index.task[row]] || found.test(lines[row]));
    }
    return tests;
  }

  function apply() {
    const tests = filters();
    const kept = shown[current];
    shown = [];
    for (let row = 0; row < rowCount; row++) if (tests.every((test) => test(row))) shown.push(row);
    count.textContent = counted(shown.length, "conversation");
    canvas.style.height = `${shown.length * ROW_HEIGHT}px`;
    current = shown.indexOf(kept);
    if (current < 0) list.scrollTop = 0;
    choose(current < 0 ? 0 : current);
  }

  function drawRows() {
    const first = Math.max(0, Math.floor(list.scrollTop / ROW_HEIGHT) - 4);
    const last = Math.min(shown.length, first + Math.ceil(list.clientHeight / ROW_HEIGHT) + 9);
    const rows = [];
    for (let place = first; place < last; place++) {
      const row = shown[place];
      const item = el("div", {
        class: "row", role: "option", id: `row-${place}`, "aria-selected": String(place === current),
        "aria-setsize": shown.length, "aria-posinset": place + 1, on: { click: () => { choose(place); } },
      },
      el("span", { class: "question", dir: "auto" }, task(row)[2].slice(0, 200) || task(row)[0]),
      el("span", { class: "facts" }, badge(row), el("span", { class: "muted small" },
        ` ${phase(row).replace("validation-greedy", "greedy")} ${index.iteration[row]} · ${counted(index.turns[row], "turn")} · reward ${short(index.reward[row] ?? 0)}`)));
      item.style.top = `${place * ROW_HEIGHT}px`;
      rows.push(item);
    }
    canvas.replaceChildren(...rows);
  }

  function choose(place) {
    current = shown.length ? Math.min(Math.max(place, 0), shown.length - 1) : -1;
    const top = current * ROW_HEIGHT;
    if (current >= 0 && top < list.scrollTop) list.scrollTop = top;
    if (current >= 0 && top + ROW_HEIGHT > list.scrollTop + list.clientHeight) {
      list.scrollTop = top + ROW_HEIGHT - list.clientHeight;
    }
    drawRows();
    if (current >= 0) list.setAttribute("aria-activedescendant", `row-${current}`);
    else list.removeAttribute("aria-activedescendant");
    read();
  }

  function read() {
    if (current < 0) {
      title.replaceChildren(el("p", { class: "muted" }, "No conversation passes the filters."));
      tabs.replaceChildren();
      content.replaceChildren();
      return;
    }
    const row = shown[current];
    const [id, source, question, reference] = task(row);
    title.replaceChildren(
      textBlock(question, "question"),
      el("p", { class: "muted small", dir: "auto" }, reference.length ? `reference: ${reference.join(" | ")} — ` : "", id.startsWith(source) ? id : `${source} ${id}`));
    const [before, after] = pairOf(row);
    const group = groupOf(row);
    const views = [["one", "Conversation", true], ["change", "Before and after", before !== after],
      ["group", `Group of ${group.length}`, group.length > 1], ["tree", "Tree", body(row).candidates.length > 0]];
    if (!views.find(([name]) => name === view)[2]) view = "one";
    tabs.replaceChildren(...views.filter((entry) => entry[2]).map(([name, label]) => el("button", {
      type: "button", role: "tab", "aria-selected": String(name === view), on: { click: () => { view = name; read(); } },
    }, label)));
    const columns = {
      one: () => [drawDialogue(row)],
      change: () => [drawDialogue(before, "before"), drawDialogue(after, "after")],
      tree: () => [drawTree(row)],
      group: () => group.slice(0, 64).map((other) => drawDialogue(other, `sample ${index.sample[other]}`)),
    }[view]();
    const wide = columns.length > 1;
    content.replaceChildren(wide
      ? el("div", { class: "columns", tabindex: "0", role: "group", "aria-label": "Conversations beside each other" }, columns)
      : columns[0]);
  }

  const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };
  list.addEventListener("keydown", (event) => {
    if (!(event.key in steps)) return;
    event.preventDefault();
    choose(current + steps[event.key]);
  });
  list.addEventListener("scroll", drawRows, { passive: true });
  document.addEventListener("keydown", (event) => {
    const typing = ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName);
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "j" || event.key === "k") choose(current + (event.key === "j" ? 1 : -1));
    else if (event.key === "/") { event.preventDefault(); textField.control.focus(); }
    else if (["1", "2", "3", "4"].includes(event.key)) {
      const names = ["one", "change", "group", "tree"];
      view = names[Number(event.key) - 1];
      read();
    }
  });
  let waiting = 0;
  const later = () => { clearTimeout(waiting); waiting = setTimeout(apply, 150); };
  const selects = Object.values(controls).filter(Boolean);
  for (const one of selects) one.control.addEventListener("change", apply);
  for (const one of [...Object.values(bounds), taskField, textField]) one.control.addEventListener("input", later);
  const clear = el("button", { type: "button", on: { click: () => {
    for (const one of selects) one.control.selectedIndex = 0;
    for (const one of [...Object.values(bounds), taskField, textField]) one.control.value = "";
    apply();
  } } }, "Clear");
  const sample = held < total ? `${held.toLocaleString("en")} of ${total.toLocaleString("en")} recorded trajectories are kept, whole tasks at a time. ` : "";
  const omitted = unread ? `${unread} files were not read, since there are too many. ` : "";
  const part = section("Conversations", "conversations",
    el("p", { class: "muted small" }, sample, omitted, el("kbd", {}, "j"), " ", el("kbd", {}, "k"), " next and previous, ",
      el("kbd", {}, "/"), " search, ", el("kbd", {}, "1"), " ", el("kbd", {}, "2"), " ", el("kbd", {}, "3"), " ",
      el("kbd", {}, "4"), " views"),
    el("div", { class: "filters", role: "search" }, taskField.label, textField.label, selects.map((one) => one.label),
      Object.values(bounds).map((one) => one.label), clear, count),
    el("div", { class: "browser" }, list, reader));
  requestAnimationFrame(apply);
  return part;
}

// ---------------------------------------------------------------- page

function draw() {
  const head = drawHead();
  const main = document.getElementById("main");
  if (several) {
    const parts = data.runs.map((one) => el("details", {}, el("summary", {}, one.name), drawRun(one), drawDetails(one)));
    main.append(...drawComparison(), section("Health", "health", data.runs.map((one) => [el("h3", {}, one.name), drawHealth(one)])),
      section("Curves", "curves", drawCharts()), section("Each run", "each", parts));
  } else {
    main.append(...drawRun(data.runs[0]), section("Curves", "curves", drawCharts()), ...drawDetails(data.runs[0]));
  }
  main.append(drawConversations());
  const links = [...main.querySelectorAll(":scope > section[id] > h2")].map((title) =>
    el("a", { href: `#${title.parentElement.id}` }, title.textContent.split(/[,:]/)[0]));
  head.append(el("nav", { "aria-label": "Sections" }, links));
}

draw();
