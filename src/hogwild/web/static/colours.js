// Colours of answers: cividis (Nuñez, Anderton & Renslow, PLOS ONE 2018), which is perceptually
// uniform and looks the same to people who do not tell red from green.

const STOPS = [
  [0, 34, 78], [0, 40, 91], [0, 46, 106], [5, 51, 113],
  [26, 56, 111], [39, 62, 110], [50, 67, 109], [59, 73, 108],
  [67, 78, 108], [75, 84, 108], [83, 90, 109], [90, 95, 110],
  [97, 101, 111], [104, 106, 113], [111, 112, 115], [118, 118, 118],
  [125, 124, 120], [132, 130, 121], [140, 136, 120], [147, 142, 120],
  [155, 148, 118], [163, 154, 116], [171, 160, 114], [180, 167, 111],
  [188, 174, 108], [196, 180, 104], [205, 187, 99], [213, 194, 94],
  [222, 201, 88], [231, 209, 80], [240, 216, 70], [249, 224, 58],
  [254, 232, 56],
];

export const LEVELS = 128;

/** The colours from low to high, as CSS. On a dark ground they begin at a share `from` of the scale,
 * so that the lowest does not vanish. */
export function palette(from = 0) {
  return Array.from({ length: LEVELS }, (_, level) => {
    const place = (from + (1 - from) * (level / (LEVELS - 1))) * (STOPS.length - 1);
    const i = Math.min(Math.floor(place), STOPS.length - 2);
    const mixed = STOPS[i].map((c, k) => Math.round(c + (place - i) * (STOPS[i + 1][k] - c)));
    return `rgb(${mixed.join(",")})`;
  });
}

/** The level of a value between low and high. */
export function level(value, low, high) {
  const share = (value - low) / (high - low || 1);
  return Math.max(0, Math.min(LEVELS - 1, Math.round(share * (LEVELS - 1))));
}

/** The lines of the two sides: the name of the colour in style.css; solid, dashed. */
export const SIDES = [
  { colour: "first", dash: [] },
  { colour: "second", dash: [7, 4] },
];
