// The two sides of the page: what they are made of, and how they are told apart.

import { Graph } from "./graph.js";

const ORDER = ["first", "second"];

/** Put the sides into the page, from the template. */
export function makeSides(template, place) {
  return ORDER.map((order, s) => {
    place.append(template.content.cloneNode(true));
    const box = place.lastElementChild;
    const find = (selector) => box.querySelector(selector);
    box.dataset.side = s;
    box.setAttribute("aria-labelledby", `title-${s}`);
    find("h2").id = `title-${s}`;
    find(".name").textContent = `The ${order} model`;
    find(".model").setAttribute("aria-label", `Model of the ${order} side`);
    find(".rule").setAttribute("aria-label", `Rule of the ${order} side`);
    find("canvas").setAttribute("aria-label", `Graph of the ${order} model`);
    const numbers = Object.fromEntries([...box.querySelectorAll("[data-number]")].map((dd) => [dd.dataset.number, dd]));
    return {
      box, numbers, graph: new Graph(find("canvas")), model: find(".model"), rule: find(".rule"),
      name: find(".name"), verdict: find(".verdict"), about: find(".about-node"),
    };
  });
}
