"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

// Whatever an artifact says is text: nothing here makes elements of a string.
function make(name, attributes, ...children) {
  const element = document.createElement(name);
  Object.entries(attributes || {}).forEach(([key, value]) => element.setAttribute(key, value));
  element.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return element;
}
function draw(name, attributes, text) {
  const element = document.createElementNS(SVG, name);
  Object.entries(attributes).forEach(([key, value]) => element.setAttribute(key, value));
  if (text !== undefined) element.textContent = text;
  return element;
}
function scaled(number, unit, steps) {
  for (const [size, name] of steps) if (Math.abs(number) >= size) return (number / size).toPrecision(3) + " " + name + unit;
  return number + " " + unit;
}
const bytes = (n) => scaled(n, "B", [[1e9, "G"], [1e6, "M"], [1e3, "k"]]);
const flops = (n) => scaled(n, "flop", [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]);
function micro(seconds) {
  if (seconds === null || seconds === undefined) return "";
  const us = seconds * 1e6;
  return (us >= 100 ? us.toFixed(0) : us.toPrecision(3)) + " us";
}
const short = (text, length) => (text.length > length ? "…" + text.slice(1 - length) : text);

// What the page shows now.
const now = { target: 0, variant: 0, plan: 0, chosen: null, sort: 5, view: null };
const target = () => data.targets[now.target];
const steps = () => data.steps[now.target];
const plan = () => steps().plans[now.plan];
const kernel = (launch) => launch[0];
const families = () => [...new Set(target().variants[0].kernels.map((k) => k.family))];
const colour = (number) => "k" + (families().indexOf(target().variants[0].kernels[number].family) % 6);
const made = (number) => steps().kernels[number].variants[now.variant];

// Whether the times are those of a model, which nobody measured.
const isPredicted = () => Boolean(data.bench && data.bench.predicted);
// Times of `atomc bench --kernels` for this step, by symbol.
function times() {
  if (!data.bench) return {};
  const all = [data.bench.prefill, ...data.bench.decode].filter((step) => step.plan === plan().name);
  const last = all.at(-1);
  return last ? Object.fromEntries(last.kernels.map((k) => [k.symbol, k])) : {};
}

function tiles() {
  const p = plan(), t = target(), v = t.variants[now.variant];
  const sum = (slot) => p.launches.reduce((total, launch) => total + (launch[slot] || 0), 0);
  const facts = [
    [bytes(data.bytes), "file"], [bytes(v.code_bytes), "code of " + v.name], [v.kernels.length, "kernels"],
    [bytes(t.weights.bytes), t.weights.buffers + " weights"], [bytes(t.cache.bytes_per_token), "cache a token"],
    [p.launches.length, "launches a step"], [new Set(p.launches.map((l) => l[1])).size, "segments"],
    [bytes(p.arena), "arena, " + bytes(p.peak) + " at once"], [bytes(sum(3)), "moved at full size"], [flops(sum(4)), "at full size"],
  ];
  if (v.chip) facts.push([(sum(5) * 1e3).toPrecision(3) + " ms", "floor on " + v.chip.name]);
  at("tiles").replaceChildren(...facts.map(([what, name]) => make("div", { class: "tile" }, make("b", {}, what), make("span", {}, name))));
}

// Launches that follow each other in one module are a row.
function module(location) {
  const parts = location.split(".");
  const layer = parts.findIndex((part) => /^\d+$/.test(part));
  return parts.slice(0, layer < 0 ? 2 : layer + 1).join(".");
}
const BOX = { width: 214, height: 44, across: 246, down: 74, left: 150 };
function places() {
  const all = [];
  let row = -1, column = 0, last = null;
  plan().launches.forEach((launch) => {
    const name = module(launch[2]);
    if (name !== last) { row += 1; column = 0; last = name; }
    all.push({ x: BOX.left + column * BOX.across, y: 20 + row * BOX.down, row, column, name });
    column += 1;
  });
  return all;
}

function graph() {
  const svg = at("graph"), all = places(), p = plan();
  svg.replaceChildren();
  p.edges.forEach(([from, to]) => {
    const a = all[from], b = all[to];
    const start = [a.x + BOX.width, a.y + BOX.height / 2], end = [b.x, b.y + BOX.height / 2];
    const path = a.row === b.row && b.column === a.column + 1
      ? `M${start} L${end}`
      : a.row === b.row
        ? `M${a.x + BOX.width / 2},${a.y} C${a.x + BOX.width / 2},${a.y - 26} ${b.x + BOX.width / 2},${b.y - 26} ${b.x + BOX.width / 2},${b.y}`
        : `M${a.x + BOX.width / 2},${a.y + BOX.height} C${a.x + BOX.width / 2},${a.y + BOX.down} ${b.x + BOX.width / 2},${b.y - BOX.down / 2} ${b.x + BOX.width / 2},${b.y}`;
    svg.append(draw("path", { class: "edge", d: path, "data-from": from, "data-to": to }));
  });
  let last = null;
  p.launches.forEach((launch, number) => {
    const place = all[number], about = target().variants[0].kernels[kernel(launch)];
    if (place.name !== last) svg.append(draw("text", { class: "soft", x: 8, y: place.y + 26 }, short(place.name, 22)));
    last = place.name;
    const box = draw("g", { class: "box " + colour(kernel(launch)), "data-launch": number, tabindex: 0 });
    box.append(draw("rect", { x: place.x, y: place.y, width: BOX.width, height: BOX.height, rx: 7 }));
    const own = launch[2].startsWith(place.name + ".") ? launch[2].slice(place.name.length + 1) : launch[2];
    box.append(draw("text", { x: place.x + 9, y: place.y + 18 }, short(own || about.family, 28)));
    box.append(draw("text", { class: "soft", x: place.x + 9, y: place.y + 34 }, short(made(kernel(launch)).schedule + " · " + bytes(launch[3]) + " · segment " + launch[1], 34)));
    const title = draw("title", {}, `${about.symbol}\nsegment ${launch[1]}\n${steps().kernels[kernel(launch)].ops}`);
    box.append(title);
    box.addEventListener("click", () => choose(number));
    box.addEventListener("keydown", (event) => event.key === "Enter" && choose(number));
    svg.append(box);
  });
  const right = Math.max(...all.map((place) => place.x)) + BOX.width + 20, bottom = Math.max(...all.map((place) => place.y)) + BOX.down;
  now.all = [0, 0, right, bottom];
  fit();
  const kinds = families().map((family, i) => make("span", { class: "k" + (i % 6) }, make("i"), family));
  at("legend").replaceChildren(...kinds);
  search();
}

function show() { at("graph").setAttribute("viewBox", now.view.join(" ")); }
// All of the width, and of the height what then fits.
function fit() {
  const svg = at("graph"), [, , width, height] = now.all;
  const ratio = svg.clientHeight / Math.max(svg.clientWidth, 1);
  // Text stays of a size that can be read.
  const shown = Math.max(Math.min(width, svg.clientWidth * 1.4), 300);
  now.view = [0, 0, shown, Math.min(shown * ratio, Math.max(height, shown * ratio))];
  show();
}
function zoom(by, x = 0.5, y = 0.5) {
  const [left, top, width, height] = now.view;
  now.view = [left + width * x * (1 - by), top + height * y * (1 - by), width * by, height * by];
  show();
}
function moves() {
  const svg = at("graph");
  let grip = null;
  svg.addEventListener("wheel", (event) => {
    event.preventDefault();
    const box = svg.getBoundingClientRect();
    zoom(event.deltaY > 0 ? 1.15 : 1 / 1.15, (event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height);
  }, { passive: false });
  svg.addEventListener("pointerdown", (event) => { grip = [event.clientX, event.clientY, ...now.view]; });
  window.addEventListener("pointerup", () => { grip = null; });
  window.addEventListener("pointermove", (event) => {
    if (!grip) return;
    const unit = now.view[2] / svg.clientWidth;
    now.view = [grip[2] - (event.clientX - grip[0]) * unit, grip[3] - (event.clientY - grip[1]) * unit, now.view[2], now.view[3]];
    show();
  });
  at("in").addEventListener("click", () => zoom(1 / 1.3));
  at("out").addEventListener("click", () => zoom(1.3));
  at("fit").addEventListener("click", () => {
    const svg = at("graph"), [, , width, height] = now.all, ratio = svg.clientHeight / Math.max(svg.clientWidth, 1);
    const shown = Math.max(width, height / ratio);
    now.view = [0, 0, shown, shown * ratio];
    show();
  });
}

function choose(number) {
  now.chosen = number;
  document.querySelectorAll(".box").forEach((box) => box.classList.toggle("chosen", +box.dataset.launch === number));
  document.querySelectorAll(".edge").forEach((edge) => edge.classList.toggle("near", [+edge.dataset.from, +edge.dataset.to].includes(number)));
  detail(kernel(plan().launches[number]), plan().launches[number]);
}

function detail(number, launch) {
  const about = target().variants[0].kernels[number], k = made(number), out = at("detail");
  const rows = [["family", about.family], ["schedule", k.schedule], ["tokens", about.tokens]];
  if (k.threads) rows.push(["threads", k.threads]);
  if (launch) rows.push(["module", launch[2]], ["segment", launch[1]], ["moves", bytes(launch[3])], ["computes", flops(launch[4])]);
  if (launch && launch[5] !== null) rows.push(["floor", micro(launch[5])]);
  const time = times()[about.symbol];
  if (isPredicted() && time) {
    const percent = (share) => Math.round(100 * share) + " %";
    rows.push(["predicted", `bound by ${time.bound} on ${data.bench.chip}; ${time.busiest} is busy ${percent(time.busy)}`]);
    time.loops.forEach((loop) => rows.push(["predicted loop", `${loop.instructions} instructions, ${loop.turns} turns, ${percent(loop.share)} of the clocks: bound by ${loop.bound}; ${loop.busiest} is busy ${percent(loop.busy)}`]));
  }
  if (k.resources) {
    const r = k.resources;
    rows.push(["registers", `${r.vgprs} vector (${r.agprs} for accumulation), ${r.sgprs} scalar`], ["LDS", bytes(r.lds)],
      ["spilled", r.vgpr_spills + r.sgpr_spills], ["waves on a SIMD", r.occupancy], ["code", `${bytes(r.code_bytes)}, ${r.instructions} instructions, ${r.matrix} matrix`]);
  }
  const table = make("table", {}, ...rows.map(([name, value]) => make("tr", {}, make("td", {}, name), make("td", {}, value))));
  const why = k.why.length ? [make("h3", {}, "Why this schedule"), make("ul", {}, ...k.why.map((line) => make("li", {}, line)))] : [];
  out.replaceChildren(make("h3", {}, about.symbol), table, ...why, make("h3", {}, "What it computes"), make("pre", {}, steps().kernels[number].body));
}

function kernels() {
  const measured = times(), any = Object.keys(measured).length > 0, by = new Map();
  plan().launches.forEach((launch) => {
    const number = kernel(launch), sum = by.get(number) || { number, count: 0, bytes: 0, flops: 0, floor: null };
    sum.count += 1; sum.bytes += launch[3]; sum.flops += launch[4];
    if (launch[5] !== null) sum.floor = (sum.floor || 0) + launch[5];
    by.set(number, sum);
  });
  const rows = [...by.values()].map((sum) => {
    const about = target().variants[0].kernels[sum.number], k = made(sum.number), r = k.resources || {}, time = measured[about.symbol];
    const floor = time && time.floor_seconds ? time.floor_seconds : sum.floor;
    return { ...sum, symbol: about.symbol, schedule: k.schedule, r, floor, seconds: time ? time.seconds ?? time.predicted_seconds : null };
  });
  const most = Math.max(...rows.map((row) => Math.max(row.seconds || 0, row.floor || 0) || row.bytes));
  const gauge = (row) => {
    const length = row.seconds || row.floor || row.bytes, box = make("span", { class: "gauge" });
    const bar = make("i"); bar.style.width = (100 * length / most) + "%"; box.append(bar);
    if (row.seconds && row.floor) { const mark = make("i", { class: "floor" }); mark.style.width = (100 * row.floor / most) + "%"; box.append(mark); }
    return box;
  };
  const columns = [
    ["kernel", (row) => row.symbol, "m"], ["schedule", (row) => row.schedule, "m"], ["launches", (row) => row.count, "n"],
    ["bytes", (row) => row.bytes, "n", bytes], ["operations", (row) => row.flops, "n", flops],
    [any ? (isPredicted() ? "predicted, floor" : "time, floor") : "share", (row) => row.seconds || row.floor || row.bytes, "", null, gauge],
    ["floor", (row) => row.floor, "n", micro], [isPredicted() ? "predicted" : "time", (row) => row.seconds, "n", micro],
    ["of the floor", (row) => (row.seconds && row.floor ? row.floor / row.seconds : null), "n", (x) => (x === null ? "" : Math.round(100 * x) + " %")],
    ["VGPRs", (row) => row.r.vgprs, "n"], ["LDS", (row) => row.r.lds, "n", (n) => (n === undefined ? "" : bytes(n))],
    ["spills", (row) => (row.r.vgprs === undefined ? undefined : row.r.vgpr_spills + row.r.sgpr_spills), "n"], ["waves", (row) => row.r.occupancy, "n"],
  ].filter(([, value]) => rows.some((row) => value(row) !== null && value(row) !== undefined));
  const key = (columns[now.sort] || columns[3])[1];
  rows.sort((a, b) => (typeof key(a) === "string" ? key(a).localeCompare(key(b)) : (key(b) || 0) - (key(a) || 0)));
  const head = make("tr", {}, ...columns.map(([name, , kind], i) => {
    const cell = make("th", { class: kind }, name);
    cell.addEventListener("click", () => { now.sort = i; kernels(); });
    return cell;
  }));
  const line = (row) => {
    const cells = columns.map(([, value, kind, format, element]) => {
      const x = value(row);
      return make("td", { class: kind }, element ? element(row) : format ? format(x) : x === null || x === undefined ? "" : x);
    });
    const tr = make("tr", { "data-kernel": row.number }, ...cells);
    tr.addEventListener("click", () => detail(row.number));
    return tr;
  };
  at("kernels").replaceChildren(head, ...rows.map(line));
  at("timed").textContent = any && isPredicted()
    ? data.bench.note + ". Assumed: " + data.bench.assumed.join("; ") + "."
    : any
    ? "Times are those of the bench; the mark is the floor, the least time that memory and arithmetic allow. What caches hold may be faster."
    : "No times of this step: give `--bench` what `atomc bench --kernels --json` says. A click on a heading sorts.";
}

function memory() {
  const svg = at("memory"), p = plan(), width = Math.max(svg.clientWidth, 200), height = 300, left = 60, count = p.launches.length;
  svg.replaceChildren();
  svg.setAttribute("viewBox", `0 0 ${width} ${height + 20}`);
  const x = (launch) => left + (launch * (width - left)) / (count + 1), y = (offset) => height - (offset * height) / Math.max(p.arena, 1);
  p.kept.forEach(([offset, size, from, to]) => {
    const box = draw("rect", { class: "kept " + colour(kernel(p.launches[from])), x: x(from), y: y(offset + size), width: x(to + 1) - x(from), height: y(offset) - y(offset + size) });
    box.append(draw("title", {}, `${bytes(size)} at ${offset}\nmade by launch ${from}, ${p.launches[from][2]}\nread until ${to < count ? "launch " + to + ", " + p.launches[to][2] : "the step ends"}`));
    svg.append(box);
  });
  [0, 0.5, 1].forEach((part) => svg.append(draw("text", { class: "soft", x: 2, y: Math.max(y(part * p.arena) - 2, 10) }, bytes(Math.round(part * p.arena)))));
  svg.append(draw("text", { class: "soft", x: left, y: height + 14 }, "launch 0"), draw("text", { class: "soft", x: width - 60, y: height + 14 }, "launch " + (count - 1)));
  const unshared = p.kept.reduce((total, value) => total + value[1], 0);
  at("memorynote").textContent = `${p.kept.length} values take ${bytes(unshared)} without reuse, ${bytes(p.peak)} at once, in an arena of ${bytes(p.arena)}. Across: launches. Up: offsets.`;
}

function weights() {
  const all = steps().weights.map(([part, size]) => [part, size]).sort((a, b) => b[1] - a[1]), total = target().weights.bytes || 1;
  const row = ([part, size]) => {
    const bar = make("i"); bar.style.width = (100 * size / all[0][1]) + "%";
    return make("tr", {}, make("td", { class: "m" }, part), make("td", { class: "n" }, bytes(size)), make("td", { class: "n" }, (100 * size / total).toFixed(1) + " %"), make("td", {}, make("span", { class: "gauge" }, bar)));
  };
  at("weights").replaceChildren(make("tr", {}, ...["module", "bytes", "share", ""].map((name) => make("th", {}, name))), ...all.map(row));
}

function search() {
  const wanted = at("search").value.trim().toLowerCase();
  let first = null;
  document.querySelectorAll(".box").forEach((box) => {
    const launch = plan().launches[+box.dataset.launch], about = target().variants[0].kernels[kernel(launch)];
    const text = [launch[2], about.symbol, about.family, made(kernel(launch)).schedule, steps().kernels[kernel(launch)].ops].join(" ").toLowerCase();
    const found = wanted !== "" && text.includes(wanted);
    box.classList.toggle("found", found);
    if (found && !first) first = +box.dataset.launch;
  });
  if (first !== null) {
    const place = places()[first], [, , width, height] = now.view;
    now.view = [Math.max(place.x - width / 2, 0), Math.max(place.y - height / 3, 0), width, height];
    show();
  }
}

function options(select, names, chosen, then) {
  select.replaceChildren(...names.map((name, i) => make("option", { value: i }, name)));
  select.value = chosen;
  select.onchange = () => { then(+select.value); all(); };
}
function all() {
  options(at("target"), data.targets.map((t) => t.name), now.target, (i) => Object.assign(now, { target: i, variant: 0, plan: 0 }));
  options(at("variant"), target().variants.map((v) => v.name), now.variant, (i) => { now.variant = i; });
  options(at("plan"), steps().plans.map((p) => p.name), now.plan, (i) => { now.plan = i; });
  tiles(); graph(); kernels(); memory(); weights();
  choose(Math.min(1, plan().launches.length - 1));
}

at("title").textContent = `${data.file || "artifact"}: ${data.model.architecture}`;
at("about").textContent = `${data.model.layers} layers of ${data.model.hidden}, vocabulary ${data.model.vocab}, by atomc ${data.producer}, key ${data.key.slice(0, 16)}, content ${data.fingerprint.slice(0, 16)}`;
document.title = at("title").textContent;
at("config").textContent = JSON.stringify(data.config, null, 1);
at("search").addEventListener("input", search);
if (data.against) {
  at("changed").hidden = false;
  const { file, all: count, changes } = data.against;
  at("against").textContent = count ? `${count} changes from ${file}; layers that changed in the same way are one line` : `nothing that is listed here changed from ${file}`;
  at("changes").replaceChildren(...changes.slice(0, 500).map(({ about, before, after, count }) => make("tr", {},
    make("td", { class: "m" }, count > 1 ? `${about} (${count} alike)` : about),
    make("td", { class: "m" }, ...[before && make("del", {}, "− " + before), before && after && make("br"), after && make("ins", {}, "+ " + after)].filter(Boolean)))));
}
window.addEventListener("resize", () => { memory(); fit(); });
moves();
all();
