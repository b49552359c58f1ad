// One side's graph on a canvas: nodes in the colours of their answers, packets on their way.

import { level } from "./colours.js";
import { theme } from "./theme.js";

const MARGIN = 18;
const NAMED = 60; // of more agents the names would cover each other
const CLOSE = 400; // of more nodes there are no rings: one would not see them

export class Graph {
  constructor(canvas) {
    this.canvas = canvas;
    this.g = canvas.getContext("2d");
    this.edges = document.createElement("canvas");
    this.scene = null;
    this.place = null; // [x, y] of every node in CSS pixels
    this.snapshots = []; // the last few, oldest first
    this.packets = [];
    this.chosen = -1;
    this.dragged = null;
    this.stale = true; // whether the picture of the edges is
    new ResizeObserver(() => { this.stale = true; }).observe(canvas);
  }

  /** A new scene; `fresh`: other nodes than before. */
  show(scene, fresh) {
    this.scene = scene;
    if (fresh) {
      this.snapshots = [];
      this.packets = [];
      this.chosen = Math.min(this.chosen, scene.nodes - 1);
    }
    this.stale = true;
  }

  /** A new snapshot of this side; `lag`: ticks by which the picture is behind. */
  add(tick, side, lag) {
    const last = this.snapshots[this.snapshots.length - 1];
    if (last && tick < last.tick) { this.snapshots = []; this.packets = []; }
    this.snapshots.push({ tick, ...side });
    if (this.snapshots.length > 12) this.snapshots.shift();
    for (const packet of side.heard) {
      packet.start = Math.max(packet.end - packet.age - 1, packet.end - Math.max(lag, 1));
      this.packets.push(packet);
    }
    if (this.packets.length > 3000) this.packets.splice(0, this.packets.length - 3000);
  }

  get last() { return this.snapshots[this.snapshots.length - 1] ?? null; }

  layout() {
    const ratio = Math.min(window.devicePixelRatio || 1, 2);
    const { clientWidth: w, clientHeight: h } = this.canvas;
    if (!w || !h) return false;
    const [W, H] = [Math.round(w * ratio), Math.round(h * ratio)];
    if (this.canvas.width !== W || this.canvas.height !== H) {
      this.canvas.width = W; this.canvas.height = H; this.stale = true;
    }
    if (!this.stale) return true;
    this.stale = false;
    this.ratio = ratio; this.w = w; this.h = h;
    const { position, nodes, edges } = this.scene;
    this.place = new Float32Array(2 * nodes);
    for (let i = 0; i < nodes; i++) {
      this.place[2 * i] = MARGIN + position[2 * i] * (w - 2 * MARGIN);
      this.place[2 * i + 1] = MARGIN + position[2 * i + 1] * (h - 2 * MARGIN);
    }
    if (this.dragged) this.place.set(this.dragged.at, 2 * this.dragged.node);
    const cell = Math.sqrt(((w - 2 * MARGIN) * (h - 2 * MARGIN)) / nodes);
    this.radius = Math.max(1.8, Math.min(11, (nodes > 400 ? 0.34 : 0.24) * cell));
    this.edges.width = W; this.edges.height = H;
    const g = this.edges.getContext("2d");
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.strokeStyle = nodes > 500 ? theme["edge-faint"] : theme.edge;
    g.lineWidth = nodes > 500 ? 0.6 : 1.2;
    g.beginPath();
    for (let e = 0; e < edges.length; e += 2) {
      g.moveTo(this.place[2 * edges[e]], this.place[2 * edges[e] + 1]);
      g.lineTo(this.place[2 * edges[e + 1]], this.place[2 * edges[e + 1] + 1]);
    }
    g.stroke();
    return true;
  }

  /** Draw the moment `t` (in ticks); `calm`: nothing travels. */
  draw(t, calm) {
    if (!this.scene || !this.layout()) return;
    const g = this.g;
    g.setTransform(1, 0, 0, 1, 0, 0);
    g.clearRect(0, 0, this.canvas.width, this.canvas.height);
    g.drawImage(this.edges, 0, 0);
    g.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    if (!this.snapshots.length) return;
    if (!calm) this.drawPackets(t);
    this.drawNodes(t, calm);
    this.drawMarks();
    if (this.scene.names && this.scene.nodes <= NAMED) this.drawNames();
  }

  drawPackets(t) {
    const g = this.g;
    const size = Math.max(1.2, 0.3 * this.radius);
    this.packets = this.packets.filter((p) => p.end > t - 0.2);
    g.fillStyle = theme.ink;
    g.beginPath();
    const lost = [];
    for (const p of this.packets) {
      if (p.start > t) continue;
      const share = Math.min((t - p.start) / (p.end - p.start), 1);
      const along = p.lost ? Math.min(share, 0.5) : share;
      const [x0, y0, x1, y1] = [this.place[2 * p.sender], this.place[2 * p.sender + 1], this.place[2 * p.receiver], this.place[2 * p.receiver + 1]];
      const x = x0 + along * (x1 - x0);
      const y = y0 + along * (y1 - y0);
      if (p.lost && share > 0.5) { lost.push(x, y); continue; }
      g.moveTo(x + size, y);
      g.arc(x, y, size, 0, 7);
    }
    g.globalAlpha = 0.75;
    g.fill();
    g.globalAlpha = 1;
    if (!lost.length) return;
    const arm = Math.max(2, 1.2 * size);
    g.strokeStyle = theme.second;
    g.lineWidth = 1.6;
    g.beginPath();
    for (let i = 0; i < lost.length; i += 2) {
      const [x, y] = [lost[i], lost[i + 1]];
      g.moveTo(x - arm, y - arm); g.lineTo(x + arm, y + arm);
      g.moveTo(x + arm, y - arm); g.lineTo(x - arm, y + arm);
    }
    g.stroke();
  }

  /** Answers at the moment t, between two snapshots. */
  answers(t) {
    let b = this.snapshots.length - 1;
    while (b > 0 && this.snapshots[b - 1].tick >= t) b--;
    const after = this.snapshots[b];
    const before = this.snapshots[Math.max(b - 1, 0)];
    const share = after.tick > before.tick ? (t - before.tick) / (after.tick - before.tick) : 1;
    return { before, after, share: Math.max(0, Math.min(1, share)) };
  }

  drawNodes(t, calm) {
    const g = this.g;
    const { low, high } = this.scene.task;
    const { before, after, share } = this.answers(calm ? Infinity : t);
    const n = Math.min(this.scene.nodes, after.answer.length);
    const r = this.radius;
    const groups = new Map();
    const dead = [];
    for (let i = 0; i < n; i++) {
      const value = after.answer[i];
      if (after.state[i] === 2 || Number.isNaN(value)) { dead.push(i); continue; }
      const old = before.answer[i];
      const mixed = Number.isNaN(old) ? value : old + share * (value - old);
      const key = level(mixed, low, high);
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(i);
    }
    const shape = (i, size) => {
      const [x, y] = [this.place[2 * i], this.place[2 * i + 1]];
      if (after.state[i] === 1) g.rect(x - 0.9 * size, y - 0.9 * size, 1.8 * size, 1.8 * size);
      else { g.moveTo(x + size, y); g.arc(x, y, size, 0, 7); }
    };
    if (n <= CLOSE) { // outlines: a darker, larger shape below is quicker than a stroke
      g.fillStyle = theme.outline;
      g.beginPath();
      for (const list of groups.values()) for (const i of list) shape(i, r + 0.5);
      g.fill();
    }
    for (const [key, list] of groups) {
      g.fillStyle = theme.palette[key];
      g.beginPath();
      for (const i of list) shape(i, r - (n <= CLOSE ? 0.5 : 0));
      g.fill();
    }
    if (n <= CLOSE) this.drawRings(after, n, r);
    this.drawDead(dead, r);
  }

  drawRings(seen, n, r) {
    const g = this.g;
    g.strokeStyle = theme.ink;
    g.lineWidth = Math.max(1.3, 0.2 * r);
    g.beginPath();
    for (let i = 0; i < n; i++) {
      if (seen.state[i] !== 0 || !seen.stale[i]) continue;
      const [x, y] = [this.place[2 * i], this.place[2 * i + 1]];
      const turn = Math.min(seen.stale[i] / this.full, 1) * 2 * Math.PI;
      g.moveTo(x, y - 1.4 * r);
      g.arc(x, y, 1.4 * r, -Math.PI / 2, -Math.PI / 2 + turn);
    }
    g.stroke();
  }

  /** Ticks of a full ring. */
  get full() {
    const { timing, full } = this.scene;
    if (full) return full;
    return timing ? 2 * (timing.stagger + timing.delay) : 14;
  }

  drawDead(dead, r) {
    const g = this.g;
    g.strokeStyle = theme.gone;
    g.fillStyle = theme.card;
    g.lineWidth = 1.5;
    for (const i of dead) {
      const [x, y, a] = [this.place[2 * i], this.place[2 * i + 1], 0.5 * Math.max(r, 3)];
      g.beginPath();
      g.arc(x, y, Math.max(r, 3), 0, 7);
      g.fill();
      g.stroke();
      g.beginPath();
      g.moveTo(x - a, y - a); g.lineTo(x + a, y + a);
      g.moveTo(x + a, y - a); g.lineTo(x - a, y + a);
      g.stroke();
    }
  }

  /** What agents are called, beside them. */
  drawNames() {
    const g = this.g;
    g.font = '12px system-ui, "Segoe UI", "DejaVu Sans", sans-serif';
    g.textBaseline = "middle";
    g.fillStyle = theme.soft;
    this.scene.names.forEach((name, i) => {
      const [x, y] = [this.place[2 * i], this.place[2 * i + 1]];
      const left = x > this.w / 2; // names stay inside
      g.textAlign = left ? "right" : "left";
      g.fillText(name, x + (left ? -1 : 1) * (1.7 * this.radius + 4), y);
    });
  }

  drawMarks() {
    const g = this.g;
    const ring = (i, r, width, colour) => {
      g.strokeStyle = colour;
      g.lineWidth = width;
      g.beginPath();
      g.arc(this.place[2 * i], this.place[2 * i + 1], r, 0, 7);
      g.stroke();
    };
    const r = Math.max(this.radius, 4);
    if (this.scene.told !== null && this.scene.told !== undefined) {
      ring(this.scene.told, 1.9 * r, 2.2, theme.ink);
    }
    if (this.chosen >= 0 && this.chosen < this.scene.nodes) {
      ring(this.chosen, 1.7 * r, 5, theme.card);
      ring(this.chosen, 1.7 * r, 2.5, theme.focus);
    }
  }

  /** The node at a place in CSS pixels, at least within `reach` of it; -1: none. */
  at(x, y, reach = 9) {
    if (!this.place) return -1;
    let best = -1;
    let near = Math.max(1.8 * this.radius, reach) ** 2;
    for (let i = 0; i < this.scene.nodes; i++) {
      const gap = (this.place[2 * i] - x) ** 2 + (this.place[2 * i + 1] - y) ** 2;
      if (gap < near) { near = gap; best = i; }
    }
    return best;
  }

  /** The nearest node in a direction from the chosen one. */
  next(dx, dy) {
    if (!this.place) return 0;
    if (this.chosen < 0) return 0;
    const [x, y] = [this.place[2 * this.chosen], this.place[2 * this.chosen + 1]];
    let best = this.chosen;
    let least = Infinity;
    for (let i = 0; i < this.scene.nodes; i++) {
      const [u, v] = [this.place[2 * i] - x, this.place[2 * i + 1] - y];
      const along = u * dx + v * dy;
      const across = Math.abs(u * dy - v * dx);
      if (i === this.chosen || along <= 0 || across > 1.5 * along) continue;
      const cost = along + 2 * across;
      if (cost < least) { least = cost; best = i; }
    }
    return best;
  }

  /** A place in CSS pixels in the unit square. */
  inSquare(x, y) {
    const clip = (v) => Math.max(0, Math.min(1, v));
    return [clip((x - MARGIN) / (this.w - 2 * MARGIN)), clip((y - MARGIN) / (this.h - 2 * MARGIN))];
  }
}
