// Where the cells of the block map are: in rows from the left to the right, in the order of their ids.

const MOVES = { ArrowLeft: () => -1, ArrowRight: () => 1, ArrowUp: (columns) => -columns, ArrowDown: (columns) => columns };

export class Grid {
  /**
   * Fit `count` square cells into a rectangle; if they are too many, each is one pixel and they go beyond its height.
   * All sizes are pixels of the screen.
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
    this.columns = Math.max(1, Math.min(Math.floor(width / size), Math.max(count, 1)));
    this.rows = Math.ceil(count / this.columns);
  }

  get width() {
    return this.columns * this.size;
  }

  get height() {
    return this.rows * this.size;
  }

  /** The left upper corner of a cell. @param {number} index @returns {[number, number]} */
  cornerOf(index) {
    return [(index % this.columns) * this.size, Math.floor(index / this.columns) * this.size];
  }

  /** The index of the cell at a point, or -1. */
  indexAt(x, y) {
    if (x < 0 || y < 0 || x >= this.width) return -1;
    const index = Math.floor(y / this.size) * this.columns + Math.floor(x / this.size);
    return index < this.count ? index : -1;
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
      const [x, y] = this.cornerOf(index);
      if (index === last + 1 && x > 0) boxes.at(-1)[2] += this.size;
      else boxes.push([x, y, this.size, this.size]);
      last = index;
    }
    return boxes;
  }
}
