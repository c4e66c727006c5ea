// What a cell of the block map looks like, pixel by pixel: a colour tells whose a block is, a shape tells its state.

import { CACHED, FENCED, FREE, PINNED, SHARED, USED } from "../engine/states.js";
import { SMALLEST_SHAPE } from "./grid.js";

const SMALLEST_GAP_AT = 4;
const WIDE_GAP_AT = 14;
// Smaller cells would lose too much of themselves.
const ROUND_FROM = 8;

/**
 * Colours as 32-bit numbers of a canvas. `hues[0]` is that of requests of others.
 * @typedef {{paper: number, free: number, faint: number, pale: number, ink: number, hues: number[], deep: number[]}} Palette
 */

export class Tiles {
  /** @type {Map<number, Uint32Array>} */
  #made = new Map();
  #palette;

  /**
   * @param {Palette} palette
   * @param {number} size of a cell with the gap that follows it, in pixels of the screen
   * @param {number} [height] of a cell without a shape, if it is another one
   */
  constructor(palette, size, height = size) {
    this.#palette = palette;
    this.size = size;
    this.height = height;
    this.gap = size >= WIDE_GAP_AT ? 2 : size >= SMALLEST_GAP_AT ? 1 : 0;
  }

  /** What is between the cells, as a pixel. */
  get paper() {
    return this.#palette.paper;
  }

  /**
   * The pixels of a cell, row by row.
   * @param {number} state
   * @param {number} hue
   * @param {boolean} isJoined whether the next cell belongs to the same request
   */
  tile(state, hue, isJoined) {
    const key = (state << 8) | (hue << 1) | Number(isJoined);
    let tile = this.#made.get(key);
    if (!tile) this.#made.set(key, (tile = this.#make(state, hue, isJoined)));
    return tile;
  }

  #make(state, hue, isJoined) {
    const { size, height, gap } = this;
    const side = size - gap;
    const tile = new Uint32Array(size * height).fill(this.#palette.paper);
    for (let y = 0; y < height - gap; y++) {
      for (let x = 0; x < side; x++) tile[y * size + x] = this.#pixel(state, hue, x, y, side);
    }
    // Like beads on a thread.
    if (isJoined && gap) {
      for (let y = Math.floor(side * 0.4); y < Math.ceil(side * 0.6); y++) {
        tile.fill(this.#palette.hues[hue], y * size + side, (y + 1) * size);
      }
    }
    return tile;
  }

  #pixel(state, hue, x, y, side) {
    const { paper, free, faint, pale, ink, hues, deep } = this.#palette;
    const isCorner = (x === 0 || x === side - 1) && (y === 0 || y === side - 1);
    if (side >= ROUND_FROM && isCorner) return paper;
    // The colour of what is cached is nearly that of others' requests, which have no shape here either.
    if (side < SMALLEST_SHAPE) return [free, pale, hues[hue], deep[hue], ink, ink][state];
    const isWithin = (inset) => Math.min(x, y, side - 1 - x, side - 1 - y) >= inset;
    switch (state) {
      case FREE:
        return free;
      case CACHED:
        return isWithin(Math.max(1, Math.round(side * 0.28))) ? faint : free;
      case USED:
        return hues[hue];
      case SHARED: {
        const period = Math.max(3, Math.round(side / 2.5));
        return (x + y) % period < Math.max(1, Math.round(period * 0.34)) ? paper : hues[hue];
      }
      case PINNED:
        return isWithin(Math.max(1, Math.round(side * 0.36))) ? paper : ink;
      case FENCED: {
        const isDash = Math.floor((x + y) / Math.max(1, Math.round(side / 6))) % 2 === 0;
        return isDash && !isWithin(Math.max(1, Math.round(side * 0.12))) ? ink : paper;
      }
      default:
        throw new Error(`There is no state ${state} of a block.`);
    }
  }
}
