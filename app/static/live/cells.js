// Paints the cells of the block map into the pixels of a canvas: all of them, or those that have changed.

import { SHARED, USED } from "../engine/states.js";

export class Cells {
  /** The pixels, row by row. */
  pixels;
  #grid;
  #tiles;

  /** @param {import("./grid.js").Grid} grid @param {import("./tiles.js").Tiles} tiles of the size of its cells */
  constructor(grid, tiles) {
    this.#grid = grid;
    this.#tiles = tiles;
    this.pixels = new Uint32Array(Math.max(1, grid.width * grid.height)).fill(tiles.paper);
  }

  /**
   * Paint cells.
   * @param {Uint8Array} states of all
   * @param {Uint32Array} owners of all
   * @param {(owner: number) => number} hueOf
   * @param {Iterable<number> | null} changed indexes, those beyond the grid are left out; null for all
   * @returns {[number, number]} the first row of pixels that was painted, and the one after the last
   */
  paint(states, owners, hueOf, changed) {
    const hues = new Map();
    const hue = (owner) => {
      if (!hues.has(owner)) hues.set(owner, hueOf(owner));
      return hues.get(owner);
    };
    const grid = this.#grid;
    let top = Infinity;
    let bottom = 0;
    const paint = (index) => {
      if (index >= grid.count) return;
      const [x, y] = grid.cornerOf(index);
      top = Math.min(top, y);
      bottom = Math.max(bottom, y + grid.cellHeight);
      const isJoined = grid.isBesideNext(index) && belongsTogether(states, owners, index);
      this.#put(x, y, this.#tiles.tile(states[index], hue(owners[index]), isJoined));
    };
    if (changed) {
      for (const index of changed) {
        paint(index);
        // What joins it to the one before.
        if (index > 0 && grid.isBesideNext(index - 1)) paint(index - 1);
      }
    } else for (let index = 0; index < grid.count; index++) paint(index);
    return bottom ? [top, bottom] : [0, 0];
  }

  /** Put a tile where its left upper corner is `left`, `top`. */
  #put(left, top, tile) {
    const { pixels } = this;
    const { size, cellHeight, width } = this.#grid;
    let from = 0;
    for (let y = top; y < top + cellHeight; y++) {
      let to = y * width + left;
      for (let x = 0; x < size; x++) pixels[to++] = tile[from++];
    }
  }
}

/** Whether a cell and the next one are of one request. */
function belongsTogether(states, owners, index) {
  const isTaken = (state) => state === USED || state === SHARED;
  return owners[index] > 0 && owners[index] === owners[index + 1] && isTaken(states[index]) && isTaken(states[index + 1]);
}
