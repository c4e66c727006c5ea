// The colours of the live view: theme.css has them for light and dark, canvases need them as numbers.

import { NUM_HUES } from "../engine/hues.js";

const NAMES = ["paper", "live-free", "live-faint", "ink", "soft", "rubric"];

/**
 * Colours as texts of CSS, by the names of their variables. `hues[0]` is that of requests of others.
 * @typedef {{paper: string, free: string, faint: string, ink: string, soft: string, rubric: string, hues: string[]}} Colours
 */

/** Read the colours as they are now. @param {HTMLElement} probe an element of the page, whose colour nobody sees @returns {Colours} */
export function readColours(probe) {
  const read = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  const [paper, free, faint, ink, soft, rubric] = NAMES.map(read);
  const hues = Array.from({ length: NUM_HUES + 1 }, (_, hue) => read(`hue-${hue}`));
  return { paper, free, faint, ink, soft, rubric, hues };
}

/** The colours as the pixels of a canvas, for tiles.js. @param {Colours} colours */
export function paletteOf({ paper, free, faint, ink, hues }) {
  const deep = hues.map((hue) => pixelOf(hue, ink, 0.45));
  const pale = pixelOf(faint, free, 0.5);
  return { paper: pixelOf(paper), free: pixelOf(free), faint: pixelOf(faint), pale, ink: pixelOf(ink), hues: hues.map((hue) => pixelOf(hue)), deep };
}

/** A colour `rgb(1, 2, 3)`, mixed with a share of another one, as a pixel: its bytes are red, green, blue and opacity. */
function pixelOf(colour, other = colour, share = 0) {
  const [from, to] = [colour, other].map((text) => text.match(/[\d.]+/g).slice(0, 3).map(Number));
  const [red, green, blue] = from.map((value, at) => Math.round(value + (to[at] - value) * share));
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}
