// The block map on two canvases: the cells, and above them what is marked.

import { Cells } from "./cells.js";
import { paletteOf } from "./colours.js";
import { Grid } from "./grid.js";
import { Tiles } from "./tiles.js";

const LARGEST_CELL_PX = 24;

export class BlockMap {
  /** @type {Grid} */
  grid = new Grid(0, 1, 1, 1);
  #cells;
  #marks;
  /** @type {Cells} */
  #painter;
  #scale = 1;
  #colours;

  /** @param {HTMLCanvasElement} cells @param {HTMLCanvasElement} marks a canvas exactly above */
  constructor(cells, marks) {
    this.#cells = cells;
    this.#marks = marks;
  }

  /**
   * Fit the cells of `count` blocks into a room, and forget what was painted.
   * @param {number} count
   * @param {{width: number, height: number}} room in CSS pixels
   * @param {number} scale pixels of the screen in a CSS pixel
   * @param {import("./colours.js").Colours} colours
   */
  fit(count, room, scale, colours) {
    const grid = new Grid(count, Math.floor(room.width * scale), Math.floor(room.height * scale), Math.round(LARGEST_CELL_PX * scale));
    for (const canvas of [this.#cells, this.#marks]) {
      canvas.width = Math.max(1, grid.width);
      canvas.height = Math.max(1, grid.height);
      canvas.style.width = `${grid.width / scale}px`;
      canvas.style.height = `${grid.height / scale}px`;
    }
    this.#painter = new Cells(grid, new Tiles(paletteOf(colours), grid.size, grid.cellHeight));
    this.#scale = scale;
    this.#colours = colours;
    this.grid = grid;
  }

  /** Paint the cells of a picture. @param {import("../engine/picture.js").Picture} picture @param {Iterable<number> | null} changed indexes; null for all */
  paint(picture, changed) {
    const { pixels } = this.#painter;
    const [top, bottom] = this.#painter.paint(picture.states, picture.owners, (owner) => picture.hueOf(owner), changed);
    if (bottom <= top) return;
    const { width, height } = this.#cells;
    const image = new ImageData(new Uint8ClampedArray(pixels.buffer, 0, 4 * width * height), width, height);
    this.#cells.getContext("2d").putImageData(image, 0, 0, 0, top, width, bottom - top);
  }

  /**
   * Mark cells: the one that is looked at, those of a request while all others fade, and those that were copied just now.
   * @param {{cursor: number, lit: number[] | null, flashes: [number, number][]}} marks `cursor` is an index or -1, `lit` has
   *   indexes in ascending order, a flash an index and how much of its time is left, 1 to 0
   */
  mark({ cursor, lit, flashes }) {
    const context = this.#marks.getContext("2d");
    const { width, height } = this.#marks;
    context.clearRect(0, 0, width, height);
    if (lit) {
      context.globalAlpha = 0.75;
      context.fillStyle = this.#colours.paper;
      context.fillRect(0, 0, width, height);
      context.globalAlpha = 1;
      for (const box of this.grid.boxesOf(lit)) context.clearRect(...box);
    }
    for (const [index, left] of flashes) this.#ring(context, index, this.#colours.rubric, Math.min(1, 2 * left));
    if (cursor >= 0) this.#ring(context, cursor, this.#colours.ink, 1);
  }

  /** The index of the cell at a point of the canvas in CSS pixels, or -1. */
  indexAt(x, y) {
    return this.grid.indexAt(x * this.#scale, y * this.#scale);
  }

  /** A ring around a cell, also one that is too small to hold it; on cells of its colour it is seen by its edge. */
  #ring(context, index, colour, opacity) {
    const [x, y] = this.grid.cornerOf(index);
    const wide = Math.round(2 * this.#scale);
    const least = Math.round(7 * this.#scale);
    const side = Math.max(this.grid.size, least);
    // Within a cell that can hold it: at the edge of the map nothing of it is cut off.
    const off = side > this.grid.size ? (side - this.grid.size) / 2 : -wide / 2;
    context.globalAlpha = opacity;
    for (const [stroke, width] of [[this.#colours.paper, 2 * wide], [colour, wide]]) {
      context.strokeStyle = stroke;
      context.lineWidth = width;
      context.strokeRect(x - off, y - off, this.grid.size + 2 * off, this.grid.size + 2 * off);
    }
    context.globalAlpha = 1;
  }
}
