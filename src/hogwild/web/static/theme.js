// The colours of the canvases, which follow those of style.css: light, dark, or on paper.

import { palette } from "./colours.js";

const NAMES = ["ink", "soft", "card", "edge", "edge-faint", "outline", "gone", "grid", "event", "first", "second", "focus"];
const dark = matchMedia("screen and (prefers-color-scheme: dark)");

/** Colours by their names in style.css, and `palette`, the colours of answers. */
export const theme = {};

function refresh() {
  const style = getComputedStyle(document.documentElement);
  for (const name of NAMES) theme[name] = style.getPropertyValue(`--${name}`).trim();
  theme.palette = palette(dark.matches ? 0.3 : 0);
}
refresh();

/** Call `redraw` whenever the colours have changed: another scheme, or a page that is printed. */
export function themed(redraw) {
  const change = () => { refresh(); redraw(); };
  dark.addEventListener("change", change);
  window.addEventListener("beforeprint", change);
  window.addEventListener("afterprint", change);
}
