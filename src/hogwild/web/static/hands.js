// What a viewer does to nodes, with a pointer or with keys.

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const FAR = 5; // pixels after which a press is a drag
const PAUSE = 120; // milliseconds between two moves that are sent
const REACH = { touch: 16 }; // pixels within which a finger hits a node

/** Let a viewer choose, kill and move nodes of a graph. `act` has choose(node, aloud), toggle(node)
 * and move(node, x, y). */
export function handle(graph, act) {
  const { canvas } = graph;
  let press = null;
  let sent = 0;

  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };

  canvas.addEventListener("pointerdown", (event) => {
    if (!graph.scene) return;
    const [x, y] = place(event);
    const node = graph.at(x, y, REACH[event.pointerType]);
    if (node < 0) return;
    if (event.pointerType === "touch") act.choose(node, false);
    press = { node, x, y, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });

  // A finger on a node drags the node; beside all nodes it scrolls the page.
  canvas.addEventListener("touchstart", (event) => {
    const [touch] = event.touches;
    if (graph.scene?.movable && event.touches.length === 1 && graph.at(...place(touch), REACH.touch) >= 0) event.preventDefault();
  }, { passive: false });

  canvas.addEventListener("pointermove", (event) => {
    if (!graph.scene) return;
    const [x, y] = place(event);
    if (!press) {
      const node = graph.at(x, y);
      canvas.style.cursor = node < 0 ? "default" : "pointer";
      if (node >= 0) act.choose(node, false);
      return;
    }
    if (!press.moved && Math.hypot(x - press.x, y - press.y) < FAR) return;
    if (!graph.scene.movable) return;
    press.moved = true;
    graph.dragged = { node: press.node, at: [x, y] };
    graph.stale = true;
    if (event.timeStamp - sent >= PAUSE) {
      sent = event.timeStamp;
      act.move(press.node, ...graph.inSquare(x, y));
    }
  });

  canvas.addEventListener("pointerup", (event) => {
    if (!press) return;
    const { node, moved } = press;
    press = null;
    graph.dragged = null;
    graph.stale = true;
    if (moved) act.move(node, ...graph.inSquare(...place(event)));
    else act.toggle(node);
  });
  canvas.addEventListener("pointercancel", () => { press = null; graph.dragged = null; graph.stale = true; });

  canvas.addEventListener("keydown", (event) => {
    if (!graph.scene || event.ctrlKey || event.altKey || event.metaKey) return;
    const arrow = ARROWS[event.key];
    const node = graph.chosen;
    if (arrow && event.shiftKey && node >= 0) {
      const { position } = graph.scene;
      const to = [0, 1].map((k) => Math.max(0, Math.min(1, position[2 * node + k] + 0.04 * arrow[k])));
      act.move(node, ...to);
    } else if (arrow) act.choose(graph.next(...arrow), true);
    else if (event.key === "Home") act.choose(0, true);
    else if (event.key === "End") act.choose(graph.scene.nodes - 1, true);
    else if ((event.key === "Enter" || event.key === " ") && node >= 0) act.toggle(node);
    else return;
    event.preventDefault();
  });
  canvas.addEventListener("focus", () => { if (graph.chosen < 0 && graph.scene) act.choose(0, true); });
}
