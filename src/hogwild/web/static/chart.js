// Curves over ticks on a logarithmic scale, one line for each side.

import { SIDES } from "./colours.js";
import { theme } from "./theme.js";
import { power } from "./words.js";

const WINDOW = 600;
const MOST = 2400;

export class Chart {
  constructor(canvas, empty) {
    this.canvas = canvas;
    this.empty = empty;
    this.clear();
  }

  clear() {
    this.lines = [[], []];
    this.events = [];
    this.names = ["", ""];
    this.drawn = "";
  }

  add(side, tick, value) {
    const line = this.lines[side];
    const last = line.length ? line[line.length - 1][0] : -1;
    if (tick < last) this.lines[side] = [];
    if (tick > last) line.push([tick, value]);
    if (line.length > MOST) this.lines[side] = line.filter((_, i) => i % 2 || i > line.length - 200);
  }

  event(tick, text) {
    this.events.push([tick, text]);
    if (this.events.length > 50) this.events.shift();
  }

  draw() {
    const ratio = Math.min(window.devicePixelRatio || 1, 2);
    const { clientWidth: w, clientHeight: h } = this.canvas;
    if (!w || !h) return;
    if (this.canvas.width !== Math.round(w * ratio) || this.canvas.height !== Math.round(h * ratio)) {
      this.canvas.width = Math.round(w * ratio);
      this.canvas.height = Math.round(h * ratio);
    }
    const g = this.canvas.getContext("2d");
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.clearRect(0, 0, w, h);
    g.font = '12px system-ui, "Segoe UI", "DejaVu Sans", sans-serif';
    const last = Math.max(...this.lines.map((line) => (line.length ? line[line.length - 1][0] : 0)), 0);
    const first = Math.min(...this.lines.map((line) => (line.length ? line[0][0] : Infinity)), last);
    const start = this.perSecond ? first : 0; // a swarm may have run for long before the page came
    const end = Math.max(last, start + 150);
    const begin = Math.max(start, end - WINDOW);
    const values = this.lines.flat().filter(([t, v]) => t >= begin && v > 0 && Number.isFinite(v)).map(([, v]) => v);
    const box = { left: 46, right: w - 78, top: 8, bottom: h - 22 };
    if (!values.length) {
      g.fillStyle = theme.soft;
      g.textAlign = "center";
      g.fillText(this.lines.some((line) => line.length > 1) ? this.empty : "nothing to show yet", w / 2, h / 2);
      return;
    }
    const high = Math.ceil(Math.log10(Math.max(...values)) + 1e-9);
    const low = Math.max(Math.min(Math.floor(Math.log10(Math.min(...values))), high - 2), -12);
    const x = (t) => box.left + ((t - begin) / (end - begin)) * (box.right - box.left);
    const y = (v) => box.bottom - ((Math.log10(Math.max(v, 1e-30)) - low) / (high - low)) * (box.bottom - box.top);
    this.axes(g, box, x, y, { begin, end, low, high });
    const labels = [];
    this.lines.forEach((line, s) => {
      g.strokeStyle = theme[SIDES[s].colour];
      g.lineWidth = 2;
      g.setLineDash(SIDES[s].dash);
      g.beginPath();
      let down = false;
      let tip = null;
      for (const [t, v] of line) {
        if (t < begin || !Number.isFinite(v)) { down = false; continue; }
        const at = [x(t), Math.min(Math.max(y(v), box.top), box.bottom)];
        if (down) g.lineTo(...at); else g.moveTo(...at);
        down = true;
        tip = at;
      }
      g.stroke();
      g.setLineDash([]);
      if (tip) labels.push({ s, y: tip[1] });
    });
    this.label(g, labels, box);
  }

  axes(g, box, x, y, { begin, end, low, high }) {
    g.lineWidth = 1;
    g.textBaseline = "middle";
    g.textAlign = "right";
    const stride = Math.max(1, Math.ceil((high - low) / 5));
    for (let p = low; p <= high; p += stride) {
      g.strokeStyle = theme.grid;
      line(g, box.left, y(10 ** p), box.right, y(10 ** p));
      g.fillStyle = theme.soft;
      g.fillText(power(p), box.left - 6, y(10 ** p));
    }
    g.textAlign = "center";
    const step = end - begin > 300 ? 100 : 50;
    for (let t = Math.ceil(begin / step) * step; t <= end; t += step) {
      g.fillText(this.perSecond ? `${t / this.perSecond} s` : t, x(t), box.bottom + 13);
    }
    if (!this.perSecond) {
      g.textAlign = "left";
      g.fillText("ticks", box.right + 16, box.bottom + 13);
    }
    for (const [t] of this.events) {
      if (t < begin || t > end) continue;
      g.strokeStyle = theme.event;
      g.setLineDash([2, 3]);
      line(g, x(t), box.top, x(t), box.bottom);
      g.setLineDash([]);
    }
  }

  label(g, labels, box) {
    labels.sort((a, b) => a.y - b.y);
    for (let i = 1; i < labels.length; i++) labels[i].y = Math.max(labels[i].y, labels[i - 1].y + 15);
    let lowest = box.bottom;
    for (const each of [...labels].reverse()) { each.y = Math.min(each.y, lowest); lowest = each.y - 15; }
    g.textAlign = "left";
    for (const { s, y } of labels) {
      g.fillStyle = theme[SIDES[s].colour];
      g.fillText(this.names[s], box.right + 6, y);
    }
  }
}

function line(g, x0, y0, x1, y1) {
  g.beginPath();
  g.moveTo(x0, y0);
  g.lineTo(x1, y1);
  g.stroke();
}
