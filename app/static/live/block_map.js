// The block map on two canvases: the cells, and above them what is marked.

import { Cells } from "./cells.js";
import { paletteOf } from "./colours.js";
import { Grid } from "./grid.js";
import { Tiles } from "./tiles.js";

const LARGEST_CELL_PX = 24;
const RING_PX = 2;
const LARGE_CELL_PX = 14;
const CIRCLE_PX = 16;

export class BlockMap {
  /** @type {Grid} */
  grid = new Grid(0, 1, 1, 1);
  #cells;
  #marks;
  /** @type {Cells} */
  #painter;
  #scale = 1;
  /** Between cells, in pixels of the screen. */
  #gap = 0;
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
    const tiles = new Tiles(paletteOf(colours), grid.size, grid.cellHeight);
    this.#painter = new Cells(grid, tiles);
    this.#gap = tiles.gap;
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
    // They fade at the end of their time only, and together.
    const opacity = Math.min(1, 8 * Math.max(0, ...flashes.map(([, left]) => left)));
    this.#circles(context, flashes.map(([index]) => index).sort((a, b) => a - b), opacity);
    if (cursor >= 0) this.#frame(context, cursor);
  }

  /** The index of the cell at a point of the canvas in CSS pixels, or -1. */
  indexAt(x, y) {
    return this.grid.indexAt(x * this.#scale, y * this.#scale);
  }

  /**
   * Circles in the colour of the text, which no request has: within cells that are large enough, so that those of neighbours
   * are apart; else around cells, and neighbours have one together.
   * @param {CanvasRenderingContext2D} context @param {number[]} indexes in ascending order @param {number} opacity
   */
  #circles(context, indexes, opacity) {
    const { width, height, size } = this.grid;
    const wide = RING_PX * this.#scale;
    const isLarge = size >= LARGE_CELL_PX * this.#scale;
    const boxes = isLarge ? indexes.flatMap((index) => this.grid.boxesOf([index])) : this.grid.boxesOf(indexes);
    context.globalAlpha = opacity;
    for (const [x, y, boxWidth, boxHeight] of boxes) {
      const high = boxHeight - this.#gap;
      const off = isLarge ? -wide : Math.max(0, (CIRCLE_PX * this.#scale - high) / 2);
      const [wider, higher] = [boxWidth - this.#gap + 2 * off, high + 2 * off];
      // At the edge of the map nothing of it is cut off.
      const within = (at, most) => (isLarge ? at : Math.max(wide, Math.min(at, most - wide)));
      this.#stroke(context, () => {
        context.beginPath();
        context.roundRect(within(x - off, width - wider), within(y - off, height - higher), wider, higher, higher / 2);
        context.stroke();
      });
    }
    context.globalAlpha = 1;
  }

  /** A frame around a cell, also one that is too small to hold it. */
  #frame(context, index) {
    const [x, y] = this.grid.cornerOf(index);
    const wide = Math.round(RING_PX * this.#scale);
    const least = Math.round(7 * this.#scale);
    const side = Math.max(this.grid.size, least);
    // Within a cell that can hold it: at the edge of the map nothing of it is cut off.
    const off = side > this.grid.size ? (side - this.grid.size) / 2 : -wide / 2;
    this.#stroke(context, () => context.strokeRect(x - off, y - off, this.grid.size + 2 * off, this.grid.size + 2 * off));
  }

  /** Draw a line in the colour of the text; on cells of that colour it is seen by its edge. @param {() => void} draw */
  #stroke(context, draw) {
    const wide = Math.round(RING_PX * this.#scale);
    for (const [stroke, width] of [[this.#colours.paper, 2 * wide], [this.#colours.ink, wide]]) {
      context.strokeStyle = stroke;
      context.lineWidth = width;
      draw();
    }
  }
}
