// Numbers and verdicts in words.

const UP = "⁰¹²³⁴⁵⁶⁷⁸⁹";

/** A number that may be very small: 38 %, 0.4 %, 3·10⁻⁵. */
export function share(value) {
  if (!Number.isFinite(value)) return "–";
  if (value >= 0.1) return `${Math.round(100 * value)} %`;
  if (value >= 0.001) return `${(100 * value).toFixed(1)} %`;
  return small(value);
}

export function small(value) {
  if (!Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  if (value >= 0.001 && value < 1000) return Number(value.toPrecision(2)).toString();
  const exponent = Math.floor(Math.log10(Math.abs(value)));
  return `${Math.round(value / 10 ** exponent)}·${power(exponent, true)}`;
}

/** A power of ten: 0.1, 1, 10, 10⁻³. */
export function power(exponent, plain = false) {
  if (!plain && exponent >= -2 && exponent <= 3) return String(Number((10 ** exponent).toPrecision(1)));
  const digits = String(Math.abs(exponent)).split("").map((d) => UP[d]).join("");
  return `10${exponent < 0 ? "⁻" : ""}${digits}`;
}

export function count(value) {
  if (!Number.isFinite(value)) return "–";
  return value < 100 ? String(Math.round(value)) : Math.round(value).toLocaleString("en-US");
}

export function size(bytes) {
  if (!Number.isFinite(bytes)) return "–";
  if (bytes < 1000) return `${Math.round(bytes)} B`;
  return bytes < 1e6 ? `${(bytes / 1000).toFixed(1)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

export function answer(value) {
  if (value === null || !Number.isFinite(value)) return "none";
  return signed(value.toFixed(Math.abs(value) < 10 ? 3 : 1));
}

/** A minus, where a computer writes a hyphen. */
function signed(text) { return text.replaceAll("-", "−"); }

/** Two numbers with as many digits as tell them apart. */
export function ends(low, high) {
  const digits = Math.max(1, Math.min(8, 1 - Math.floor(Math.log10(high - low))));
  const shown = (v) => (Math.max(Math.abs(low), Math.abs(high)) < 1e6 ? v.toFixed(digits) : v.toExponential(3));
  return [signed(shown(low)), signed(shown(high))];
}

/** What to say of a side: [state, headline, detail]. */
export function verdict(side, about, restart) {
  const far = share(side.error);
  const done = side.state.reduce((sum, s) => sum + (s === 1), 0);
  const living = side.state.reduce((sum, s) => sum + (s !== 2), 0);
  if (!Number.isFinite(side.error)) return ["wait", "Waiting.", "No answer has come yet."];
  if (side.error < 1e-3) {
    return ["right", "Right.", side.error === 0 ? "Every node gives the model’s answer in step."
      : `Every node is within ${far} of the model’s answer in step.`];
  }
  if (about.ends && done === living) {
    const left = Math.max(0, Math.round(restart - side.since));
    return ["wrong", "Wrong, and done.",
      `${far} away from its answer in step. ` +
      `Nodes begin anew in ${left} tick${left === 1 ? "" : "s"}.`];
  }
  if (about.ends) {
    return ["wait", "One pass through the layers.", `Nodes show their last pass until they are done: ${far} away.`];
  }
  return ["wait", "Finding out.", `${far} away from the model’s answer in step.`];
}

/** What a viewer can do to nodes. */
export function keys(movable) {
  return movable
    ? "Click or tap a node to kill or revive it. Drag it to change the graph. By keyboard: arrows choose a node, Enter kills or revives it, Shift with arrows moves it."
    : "Click or tap a node to kill or revive it. By keyboard: arrows choose a node, Enter kills or revives it.";
}

export function onTask(value, inStep, classes) {
  if (!Number.isFinite(value)) return "–";
  const shown = (v) => (classes ? `${Math.round(100 * v)} % wrong` : `error ${v.toFixed(2)}`);
  return inStep === null ? shown(value) : `${shown(value)}, in step ${classes ? `${Math.round(100 * inStep)} %` : inStep.toFixed(2)}`;
}

/** What to say of a swarm of real processes; `known`: whether their answer in step is. */
export function swarmVerdict(side, known) {
  const far = share(side.error);
  const done = side.state.reduce((sum, s) => sum + (s === 1), 0);
  const living = side.state.reduce((sum, s) => sum + (s !== 2), 0);
  const settled = `${done} of ${living} agents say that they are settled.`;
  if (!living) return ["wrong", "Nobody speaks.", "No agent has said anything for some seconds."];
  if (known === false) {
    return done === living
      ? ["right", "Settled.", `${settled} Their answer in step is not known here.`]
      : ["wait", "Finding out.", `${settled} The largest residual is ${small(side.residual)}.`];
  }
  if (!Number.isFinite(side.error)) return ["wait", "Waiting for the agents.", "They have said nothing yet."];
  if (side.error < 1e-3) return ["right", "Right.", `Every agent is within ${far} of the answer in step. ${settled}`];
  return ["wait", "Finding out.", `${far} away from the answer in step. ${settled}`];
}
