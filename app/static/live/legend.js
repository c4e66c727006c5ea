// The one legend: what each kind of cell and each part of the timeline is, drawn as they are drawn there.

import { useLayoutEffect, useRef } from "preact/hooks";
import { html } from "../parts/html.js";
import { paletteOf } from "./colours.js";
import { FREE, STATES } from "./states.js";
import { Tiles } from "./tiles.js";

const SIDE_PX = 14;

/** @param {{blockSize: number, counts: Record<string, number>, colours: import("./colours.js").Colours, scale: number}} props */
export function Legend({ blockSize, counts, colours, scale }) {
  return html`
    <div class="live-legend">
      <p>Each square is a block: memory for ${blockSize} tokens.</p>
      <ul>
        ${STATES.map(({ name, meaning }, state) => html`
          <li><${Sample} state=${state} colours=${colours} scale=${scale} />
            <b>${name}</b> <span class="live-count">${counts[name] ?? 0}</span> <span>${meaning}</span></li>`)}
        <li><span class="live-sample copied" aria-hidden="true"></span> <b>copied</b> <span>before a write, since it was shared</span></li>
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
    canvas.current.width = canvas.current.height = side;
    const pixels = new Uint8ClampedArray(tiles.tile(state, state === FREE ? 0 : 1, false).buffer);
    canvas.current.getContext("2d").putImageData(new ImageData(pixels, side, side), 0, 0);
  }, [state, colours, scale]);
  return html`<canvas class="live-sample" ref=${canvas} aria-hidden="true"></canvas>`;
}
