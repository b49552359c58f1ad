// The page: what the server says goes to graphs, curves and words; what the viewer does goes back.

import { Chart } from "./chart.js";
import { handle } from "./hands.js";
import { Link } from "./link.js";
import { makeSides } from "./sides.js";
import { theme, themed } from "./theme.js";
import * as words from "./words.js";

const $ = (selector) => document.querySelector(selector);
const RULES = {
  messages: "messages", gradient: "gradient steps", "fixed-point": "fixed point",
  overwriting: "overwriting", caching: "caching", resending: "resending",
};
const PRESETS = {
  survive: [["energy", "messages"], ["gcn", "overwriting"]],
  rules: [["energy", "messages"], ["energy", "gradient"]],
  caching: [["gcn", "overwriting"], ["gcn", "caching"]],
};
const sides = makeSides($("#side"), $(".sides"));
const charts = {
  error: new Chart($("#error"), "no answer yet"),
  residual: new Chart($("#residual"), "layers have no residual: nothing tells them how far they are"),
};
const quiet = matchMedia("(prefers-reduced-motion: reduce)");
let hello = null;
let scene = null;
let clock = 0; // the moment that is drawn, in ticks
let latest = 0;
let rate = 20; // ticks a second, as they come
let heard = []; // [when, tick] of the snapshots of the last two seconds
let wish = new URLSearchParams(location.hash.slice(1));
let pausedByHiding = false;

// -- what the server says -------------------------------------------------------------------------

const link = new Link({
  hello(said) {
    hello = said;
    document.body.classList.toggle("attached", said.attached);
    fill($("#task"), Object.entries(said.tasks).map(([name, { title }]) => [name, title]));
    banner(null);
    connected(true);
    ask();
  },
  scene(said) {
    const before = scene;
    scene = said;
    const fresh = !before || before.nodes !== said.nodes || before.seed !== said.seed
      || before.task.name !== said.task.name || before.mode !== said.mode;
    if (fresh) Object.values(charts).forEach((chart) => chart.clear());
    else note(before, said);
    sides.forEach(({ graph }) => graph.show(said, fresh));
    document.documentElement.dataset.scene = said.version;
    describe();
  },
  snapshot(said) {
    if (!scene || said.n !== scene.nodes) return;
    if (said.tick < latest) Object.values(charts).forEach((chart) => { chart.lines = [[], []]; chart.events = []; });
    const now = performance.now();
    if (Math.abs(said.tick - latest) > 200 || said.tick < latest) {
      clock = said.tick - lag();
      heard = [];
    }
    latest = said.tick;
    heard = heard.filter(([when]) => now - when < 2000);
    heard.push([now, said.tick]);
    const [when, tick] = heard[0];
    if (now - when > 500) rate = (said.tick - tick) / ((now - when) / 1000);
    said.sides.forEach((side, s) => {
      sides[s].graph.add(said.tick, side, lag());
      charts.error.add(s, said.tick, side.error);
      charts.residual.add(s, said.tick, side.residual);
    });
    document.documentElement.dataset.first ??= String(Math.round(now));
  },
  notice({ kind, text }) {
    banner(text, kind);
    setTimeout(() => { if ($("#banner").textContent === text) banner(scene?.banner ?? null); }, kind === "error" ? 8000 : 4000);
  },
  gone(code, reason) {
    connected(false);
    if (code === 1008) banner(`The server has closed the connection: ${reason || "it refused this page"}. Load the page again.`, "error");
    else if (code !== 1013) banner("The server does not answer. Start it with: hogwild serve. This page finds it by itself.", "error");
  },
});

/** Whether the server hears what the viewer does. */
function connected(yes) {
  for (const each of document.querySelectorAll("#panel, #presets, .choose")) each.inert = !yes;
}

/** What the address of the page asks for. */
function ask() {
  const get = (name, usual) => wish.get(name) ?? usual;
  if (hello.attached) return;
  if (wish.has("task") || wish.has("nodes") || wish.has("seed")) {
    const nodes = Math.max(Number(get("nodes", 60)), hello.limits.nodes[0]); // a graph of one's own may be smaller
    link.send("world", { task: get("task", "field"), nodes, seed: Number(get("seed", 3)) });
  }
  if (wish.has("left")) choose(0, ...wish.get("left").split(","));
  if (wish.has("right")) choose(1, ...wish.get("right").split(","));
  if (["stagger", "delay", "loss"].some((name) => wish.has(name))) {
    link.send("timing", { stagger: Number(get("stagger", 5)), delay: Number(get("delay", 2)), loss: Number(get("loss", 0)) });
  }
  link.send("speed", { ticks: Number(get("speed", 20)) });
}

/** Keep the address of the page in step with what it shows. */
function remember() {
  if (!scene || scene.mode !== "live") return;
  const { task, nodes, seed, timing, sides: [left, right] } = scene;
  wish = new URLSearchParams({
    task: task.name, nodes, seed, left: `${left.model},${left.rule}`, right: `${right.model},${right.rule}`,
    stagger: timing.stagger, delay: timing.delay, loss: timing.loss, speed: timing.speed,
  });
  history.replaceState(null, "", `#${wish}`.replaceAll("%2C", ","));
}

/** Mark in the curves what has changed. */
function note(before, now) {
  const changed = JSON.stringify([before.dead, before.edges, before.timing, before.position])
    !== JSON.stringify([now.dead, now.edges, now.timing, now.position]);
  if (changed) Object.values(charts).forEach((chart) => chart.event(latest));
}

// -- words ----------------------------------------------------------------------------------------

function describe() {
  const { task, timing, mode } = scene;
  $("#question").textContent = task.question;
  [$("#low").textContent, $("#high").textContent] = words.ends(task.low, task.high);
  $("#answer").textContent = `colour: ${task.answer}`;
  const { full } = sides[0].graph;
  $("#rings").hidden = scene.nodes > 400;
  $("#full").textContent = scene.unit ? `${Math.round(1000 * scene.unit * full)} ms` : ticks(full);
  $("#square").textContent = mode === "attached" ? "settled" : "done, no longer listens";
  $("#dead").textContent = mode === "attached" ? "cannot be heard" : "dead";
  Object.values(charts).forEach((chart) => { chart.perSecond = scene.per_second ?? 0; });
  if (mode === "attached") {
    banner(scene.banner);
    document.body.classList.toggle("unknown", scene.known === false);
    $(".side h2 .name").textContent = "The swarm";
    sides[0].graph.canvas.setAttribute("aria-label", `Graph of ${scene.nodes} agents`);
    return;
  }
  $("#keys").textContent = words.keys(scene.movable);
  $("#presets").hidden = task.name === "given";
  $("#task").value = task.name;
  if (![...$("#nodes").options].some((o) => Number(o.value) === scene.nodes)) $("#nodes").add(new Option(scene.nodes));
  $("#nodes").value = String(scene.nodes);
  $("#nodes").disabled = $("#readings").disabled = $("#other").disabled = !scene.movable;
  for (const [name, text] of [["stagger", ticks], ["delay", ticks], ["loss", percent], ["speed", perSecond]]) {
    const slider = $(`#${name}`);
    if (document.activeElement !== slider) slider.value = String(timing[name]);
    $(`output[for="${name}"]`).textContent = text(timing[name]);
  }
  $("#pause").setAttribute("aria-pressed", String(scene.paused));
  $("#pause").textContent = scene.paused ? "Go on" : "Pause";
  scene.sides.forEach((about, s) => {
    const { model, rule } = sides[s];
    const all = Object.entries(task.name === "given" ? { given: { title: "Your model" } } : hello.models);
    fill(model, all.map(([name, { title }]) => [name, title]), about.model);
    fill(rule, about.rules.map((name) => [name, RULES[name] ?? name]), about.rule);
    const other = scene.sides[1 - s];
    sides[s].name.textContent = `${about.title}, ${RULES[about.rule]}`;
    const name = other && about.model === other.model ? (about.rule === "gradient" ? "gradient" : RULES[about.rule] ?? about.rule) : about.title;
    Object.values(charts).forEach((chart) => { chart.names[s] = name; });
    sides[s].graph.canvas.setAttribute("aria-label",
      `Graph of ${scene.nodes} nodes that run the ${about.title} with the rule ${RULES[about.rule]}`);
  });
  for (const button of document.querySelectorAll("[data-preset]")) {
    const wanted = PRESETS[button.dataset.preset];
    const fits = scene.sides.every(({ model, rule }, s) => model === wanted[s][0] && rule === wanted[s][1]);
    button.setAttribute("aria-pressed", String(fits));
  }
  remember();
  tell();
}

/** What changes with every snapshot, in words; a few times a second. */
function tell() {
  if (!scene) return;
  sides.forEach(({ graph, verdict, about: line, numbers: boxes }, s) => {
    const side = graph.last;
    const about = scene.sides[s];
    if (!about) return;
    if (!side) {
      if (scene.mode === "attached") set(verdict.querySelector("strong"), "Waiting for the agents.");
      return;
    }
    const [state, head, text] = scene.mode === "attached"
      ? words.swarmVerdict(side, scene.known) : words.verdict(side, about, hello.restart);
    if (verdict.dataset.state !== state) {
      verdict.dataset.state = state;
      if (state !== "wait") $("#verdicts").textContent = `${about.title}: ${head} ${text}`;
    }
    set(verdict.querySelector("strong"), head);
    set(verdict.querySelector("span"), text);
    const numbers = {
      updates: words.count(side.updates), packets: words.count(side.packets), bytes: words.size(side.bytes),
      task: words.onTask(side.task, about.in_step, scene.task.classes),
    };
    for (const [name, value] of Object.entries(numbers)) set(boxes[name], value);
    set(line, aboutNode(graph, about));
  });
}

function aboutNode(graph, about) {
  const i = graph.chosen;
  const side = graph.last;
  if (i < 0 || i >= scene.nodes) return "Choose a node to read its answer.";
  const name = scene.names ? `Agent ${scene.names[i]}` : `Node ${i}`;
  if (side.state[i] === 2) return scene.names ? `${name} cannot be heard.` : `${name} is dead. Its neighbours counted on it for ${hello.lease} more ticks.`;
  const links = scene.edges.reduce((sum, end) => sum + (end === i), 0);
  const exact = about.exact[i];
  const age = scene.unit ? `${Math.round(1000 * scene.unit * side.stale[i])} ms` : ticks(side.stale[i]);
  const done = scene.mode === "attached" ? "settled" : "done";
  const news = side.state[i] === 1 ? done : `its oldest packet is ${age} old`;
  const inStep = scene.known === false ? "" : `, in step ${words.answer(exact)}`;
  return `${name}: says ${words.answer(side.answer[i])}${inStep}; ${news}; ${links} neighbour${links === 1 ? "" : "s"}.`;
}

function banner(text, kind = "note") {
  const box = $("#banner");
  box.hidden = !text;
  box.dataset.kind = kind;
  if (text && box.textContent !== text) box.textContent = text;
}

const ticks = (v) => `${v} tick${v === 1 ? "" : "s"}`;
const percent = (v) => `${Math.round(100 * v)} %`;
const perSecond = (v) => `${v} ticks a second`;
function set(element, text) { if (element.textContent !== text) element.textContent = text; }
function fill(select, options, chosen) {
  const key = JSON.stringify(options);
  if (select.dataset.key !== key) {
    select.dataset.key = key;
    select.replaceChildren(...options.map(([value, text]) => new Option(text, value)));
  }
  if (chosen !== undefined) select.value = chosen;
}

// -- what the viewer does -------------------------------------------------------------------------

function choose(side, model, rule = "auto") { link.send("side", { side, model, rule }); }

$("#task").onchange = ({ target }) => link.send("world", { task: target.value, nodes: scene.nodes, seed: scene.seed });
$("#nodes").onchange = ({ target }) => link.send("world", { task: scene.task.name, nodes: Number(target.value), seed: scene.seed });
$("#other").onclick = () => link.send("world", { task: scene.task.name, nodes: scene.nodes, seed: scene.seed + 1 });
$("#readings").onclick = () => link.send("readings");
$("#again").onclick = () => link.send("again");
$("#pause").onclick = () => link.send("pause", { paused: !scene.paused });
for (const name of ["stagger", "delay", "loss"]) {
  $(`#${name}`).oninput = soon(() => link.send("timing", {
    stagger: Number($("#stagger").value), delay: Number($("#delay").value), loss: Number($("#loss").value),
  }));
}
$("#speed").oninput = soon(() => link.send("speed", { ticks: Number($("#speed").value) }));
sides.forEach(({ model, rule }, s) => {
  model.onchange = () => choose(s, model.value);
  rule.onchange = () => choose(s, model.value, rule.value);
});
for (const button of document.querySelectorAll("[data-preset]")) {
  button.onclick = () => PRESETS[button.dataset.preset].forEach((pair, s) => choose(s, ...pair));
}
const act = {
  choose(node, aloud) {
    sides.forEach(({ graph }) => { graph.chosen = node; });
    tell();
    if (aloud) $("#said").textContent = sides.filter(({ box }) => box.offsetParent).map(({ about }, s) => `${scene.sides[s].title}: ${about.textContent}`).join(" ");
  },
  toggle(node) {
    if (scene.mode === "attached") return;
    act.choose(node, false);
    const alive = scene.dead.includes(node);
    scene.dead = alive ? scene.dead.filter((i) => i !== node) : [...scene.dead, node];
    link.send("node", { node, alive });
    $("#said").textContent = `Node ${node} ${alive ? "revived" : "killed"}.`;
  },
  move(node, x, y) { if (scene.movable) link.send("move", { node, x, y }); },
};
sides.forEach(({ graph }) => handle(graph, act));

/** At most ten calls a second, the last one in any case. */
function soon(call) {
  let timer = null;
  return () => { timer ??= setTimeout(() => { timer = null; call(); }, 100); };
}

const still = $("#still");
still.checked = quiet.matches;
quiet.onchange = () => { still.checked = quiet.matches; calm(); };
still.onchange = calm;
function calm() { document.body.classList.toggle("calm", still.checked); }
calm();

document.addEventListener("visibilitychange", () => {
  if (!scene || scene.mode === "attached") return;
  if (document.hidden && !scene.paused) { pausedByHiding = true; link.send("pause", { paused: true }); }
  else if (!document.hidden && pausedByHiding) { pausedByHiding = false; link.send("pause", { paused: false }); }
});

// -- pictures -------------------------------------------------------------------------------------

/** Ticks by which the picture is behind, so that packets are seen on their way. */
function lag() { return 1.5 + Math.min(scene?.timing?.delay ?? 0, 4); }

let last = performance.now();
let drawn = -1e9;
let worded = 0;
let frames = 0;
let counted = last;
function draw(now) {
  requestAnimationFrame(draw);
  const seconds = Math.min((now - last) / 1000, 0.25);
  last = now;
  const goal = latest - lag();
  if (!scene?.paused) clock += rate * seconds;
  clock += Math.min(1, 3 * seconds) * (goal - clock);
  clock = Math.min(clock, goal + 0.6 * lag()); // never so near that no packet is on its way
  const quietly = still.checked;
  if (!quietly || now - drawn > 500) {
    drawn = now;
    sides.forEach(({ graph, box }) => { if (box.offsetParent) graph.draw(clock, quietly); });
    frames++;
  }
  if (now - worded > 250) {
    worded = now;
    tell();
    Object.values(charts).forEach((chart) => chart.draw());
  }
  if (now - counted >= 1000) {
    document.documentElement.dataset.fps = (1000 * frames / (now - counted)).toFixed(1);
    frames = 0;
    counted = now;
  }
}
requestAnimationFrame(draw);

function drawBar() {
  const bar = $("#bar").getContext("2d");
  theme.palette.forEach((colour, i) => {
    bar.fillStyle = colour;
    bar.fillRect((256 * i) / theme.palette.length, 0, 256 / theme.palette.length + 1, 12);
  });
}
drawBar();
themed(() => {
  drawBar();
  drawn = -1e9;
  sides.forEach(({ graph }) => { graph.stale = true; graph.draw(clock, still.checked); });
  Object.values(charts).forEach((chart) => chart.draw());
});

// -- for programs that drive the page --------------------------------------------------------------

export { act };

/** Where the nodes of the first side are, in CSS pixels from the corner of its canvas. */
export function places() {
  const { place } = sides[0].graph;
  return Array.from({ length: scene.nodes }, (_, i) => [place[2 * i], place[2 * i + 1]]);
}
