// The connection to the server: commands go out as JSON, scenes and snapshots come in.

const MAGIC = 0x31474f48;

/** A snapshot, as hogwild/web/protocol.py packs it; null if it is none. */
export function unpack(buffer) {
  const view = new DataView(buffer);
  if (buffer.byteLength < 24 || view.getUint32(0, true) !== MAGIC) return null;
  const [scene, tick, n, count] = [4, 8, 12, 16].map((at) => view.getUint32(at, true));
  let at = 24;
  const sides = [];
  for (let s = 0; s < count; s++) {
    const [error, task, residual, updates, packets, bytes, since] =
      Array.from({ length: 8 }, (_, i) => view.getFloat32(at + 4 * i, true));
    const heard = view.getUint32(at + 32, true);
    at += 36;
    const answer = new Float32Array(buffer, at, n);
    const stale = new Uint8Array(buffer, at + 4 * n, n);
    const state = new Uint8Array(buffer, at + 5 * n, n);
    at += 6 * n + ((4 - ((2 * n) % 4)) % 4);
    const list = new Array(heard);
    for (let p = 0; p < heard; p++, at += 8) {
      list[p] = {
        sender: view.getUint16(at, true), receiver: view.getUint16(at + 2, true),
        end: tick - view.getUint8(at + 4), age: view.getUint8(at + 5),
        lost: view.getUint8(at + 6) === 1,
      };
    }
    sides.push({ error, task, residual, updates, packets, bytes, since, answer, stale, state, heard: list });
  }
  return { scene, tick, n, sides };
}

/** Connects, and connects again when the server has gone. */
export class Link {
  constructor(on) {
    this.on = on;
    this.wait = 500;
    this.open();
  }

  open() {
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    this.socket = new WebSocket(`${scheme}://${location.host}/live`);
    this.socket.binaryType = "arraybuffer";
    this.socket.onmessage = ({ data }) => {
      if (data instanceof ArrayBuffer) {
        const found = unpack(data);
        if (found) this.on.snapshot(found);
        return;
      }
      const said = JSON.parse(data);
      this.wait = 500;
      this.on[said.is]?.(said);
    };
    this.socket.onclose = ({ code, reason }) => {
      this.on.gone(code, reason);
      if (code === 1008) return; // the server does not want this page any more
      setTimeout(() => this.open(), this.wait);
      this.wait = Math.min(2 * this.wait, 8000);
    };
  }

  send(name, values = {}) {
    if (this.socket.readyState === WebSocket.OPEN) {
      this.socket.send(JSON.stringify({ do: name, ...values }));
    }
  }
}
