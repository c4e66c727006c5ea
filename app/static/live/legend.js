// The one legend: what each kind of cell and each part of a step is, drawn as they are drawn there.

import { useLayoutEffect, useRef } from "preact/hooks";
import { FREE, STATES } from "../engine/states.js";
import { html } from "../parts/html.js";
import { paletteOf } from "./colours.js";
import { Tiles } from "./tiles.js";

const SIDE_PX = 14;
// What is no state of a block: a name of a class of live.css, and words.
const SIGNS = [
  { name: "copied", meaning: "a moment ago" },
  { name: "read", meaning: "a chunk of a prompt" },
  { name: "guess", meaning: "draft token accepted" },
];

/** @param {{blockSize: number, counts: Record<string, number>, hasOthers: boolean, looks: import("./looks.js").Looks}} props */
export function Legend({ blockSize, counts, hasOthers, looks: { colours, scale } }) {
  return html`
    <div class="live-legend">
      <p>Each square is a block: memory for ${blockSize} tokens. Each request has a colour${hasOthers ? "; those of others are grey" : ""}.</p>
      <ul>
        ${STATES.map(({ name, meaning }, state) => html`
          <li><${Sample} state=${state} colours=${colours} scale=${scale} />
            <b>${name}</b> <span class="live-count">${counts[name].toLocaleString("en")}</span> <span>${meaning}</span></li>`)}
        ${SIGNS.map(({ name, meaning }) => html`
          <li><span class="live-sample" data-sign=${name} aria-hidden="true"></span> <b>${name}</b> <span>${meaning}</span></li>`)}
      </ul>
    </div>
  `;
}

/** A cell of a state, of the first hue. */
function Sample({ state, colours, scale }) {
  const canvas = useRef(null);
  useLayoutEffect(() => {
    const side = Math.round(SIDE_PX * scale);
    const tiles = new Tiles(paletteOf(colours), side);
    const image = new ImageData(side, side);
    new Uint32Array(image.data.buffer).set(tiles.tile(state, state === FREE ? 0 : 1, false));
    canvas.current.width = canvas.current.height = side;
    canvas.current.getContext("2d").putImageData(image, 0, 0);
  }, [state, colours, scale]);
  return html`<canvas class="live-sample" ref=${canvas} aria-hidden="true"></canvas>`;
}
