// Where the cells of the block map are: in rows from the left to the right, in the order of their ids. Cells that are too
// small for a shape are in bands, each like a column of a newspaper: so the blocks of one request are a patch, not a line.

const MOVES = { ArrowLeft: () => -1, ArrowRight: () => 1, ArrowUp: (columns) => -columns, ArrowDown: (columns) => columns };
/** A smaller cell has a colour only. */
export const SMALLEST_SHAPE = 3;
const BAND_COLUMNS = 16;

export class Grid {
  /**
   * Fit `count` square cells into a rectangle; in bands they are up to twice as high as wide. If they are too many, each is
   * one pixel and they go beyond its height. All sizes are pixels of the screen.
   * @param {number} count
   * @param {number} width
   * @param {number} height
   * @param {number} largest side of a cell, with the gap that follows it
   */
  constructor(count, width, height, largest) {
    let size = Math.max(1, Math.min(largest, Math.floor(Math.sqrt((width * height) / Math.max(count, 1)))));
    while (size > 1 && Math.floor(width / size) * Math.floor(height / size) < count) size--;
    this.count = count;
    this.size = size;
    this.isInBands = size < SMALLEST_SHAPE && count > BAND_COLUMNS;
    /** Of a band, if there are bands. */
    this.columns = this.isInBands ? BAND_COLUMNS : Math.max(1, Math.min(Math.floor(width / size), Math.max(count, 1)));
    this.bandGap = this.isInBands ? size : 0;
    const mostBands = this.isInBands ? Math.max(1, Math.floor((width + this.bandGap) / this.#bandStep)) : 1;
    this.rows = Math.ceil(count / (mostBands * this.columns));
    this.numBands = Math.max(1, Math.ceil(count / (this.rows * this.columns)));
    this.cellHeight = this.isInBands ? Math.max(size, Math.min(2 * size, Math.floor(height / this.rows))) : size;
  }

  get width() {
    return this.numBands * this.#bandStep - this.bandGap;
  }

  get height() {
    return this.rows * this.cellHeight;
  }

  /** From the left of a band to that of the next one. */
  get #bandStep() {
    return this.columns * this.size + this.bandGap;
  }

  /** The left upper corner of a cell. @param {number} index @returns {[number, number]} */
  cornerOf(index) {
    const line = Math.floor(index / this.columns);
    const band = Math.floor(line / this.rows);
    return [band * this.#bandStep + (index % this.columns) * this.size, (line - band * this.rows) * this.cellHeight];
  }

  /** The index of the cell at a point, or -1. */
  indexAt(x, y) {
    if (x < 0 || y < 0 || x >= this.width || y >= this.height) return -1;
    const band = Math.floor(x / this.#bandStep);
    const column = Math.floor((x - band * this.#bandStep) / this.size);
    if (column >= this.columns) return -1;
    const index = (band * this.rows + Math.floor(y / this.cellHeight)) * this.columns + column;
    return index < this.count ? index : -1;
  }

  /** Whether a cell and the one after it are side by side. @param {number} index */
  isBesideNext(index) {
    return (index + 1) % this.columns > 0;
  }

  /** The cell to which a key leads, or null if it leads nowhere. @param {number} index @param {string} key */
  moved(index, key) {
    if (key === "Home") return 0;
    if (key === "End") return this.count - 1;
    const step = MOVES[key]?.(this.columns);
    if (!step) return null;
    return index + step >= 0 && index + step < this.count ? index + step : index;
  }

  /**
   * Rectangles `[x, y, width, height]` that cover cells, one for each run of neighbours in a row.
   * @param {number[]} indexes in ascending order
   * @returns {[number, number, number, number][]}
   */
  boxesOf(indexes) {
    /** @type {[number, number, number, number][]} */
    const boxes = [];
    let last = -2;
    for (const index of indexes) {
      if (index === last + 1 && this.isBesideNext(last)) boxes.at(-1)[2] += this.size;
      else boxes.push([...this.cornerOf(index), this.size, this.cellHeight]);
      last = index;
    }
    return boxes;
  }
}
