import assert from "node:assert/strict";
import test from "node:test";
import { Grid } from "../../../app/static/live/grid.js";

test("cells are as large as the room lets all of them be", () => {
  const { size, columns, rows } = new Grid(2000, 680, 440, 18);
  assert.deepEqual([size, columns, rows], [12, 56, 36]);
});

test("few cells are not larger than the largest", () => {
  assert.equal(new Grid(10, 680, 440, 18).size, 18);
});

test("a hundred thousand cells are a pixel wide each, and may need more height than there is", () => {
  const grid = new Grid(100_000, 600, 100, 18);
  assert.deepEqual([grid.size, grid.cellHeight, grid.width, grid.height], [1, 1, 35 * 17 - 1, 179]);
});

test("cells in bands are twice as high as wide, if there is room", () => {
  const grid = new Grid(100_000, 670, 340, 18);
  assert.deepEqual([grid.size, grid.cellHeight, grid.rows], [1, 2, 161]);
  assert.ok(grid.height <= 340 && grid.width <= 670);
});

test("the cells of a band are above the ones that follow, and bands are beside each other", () => {
  const grid = new Grid(100_000, 670, 340, 18);
  assert.deepEqual([0, 15, 16, 16 * 161 - 1, 16 * 161].map((index) => grid.cornerOf(index)), [[0, 0], [15, 0], [0, 2], [15, 320], [17, 0]]);
  for (let index = 0; index < 100_000; index++) {
    const [x, y] = grid.cornerOf(index);
    assert.equal(grid.indexAt(x, y), index);
    assert.equal(grid.indexAt(x, y + 1), index);
  }
  // Between two bands.
  assert.equal(grid.indexAt(16, 0), -1);
  assert.deepEqual(grid.boxesOf([14, 15, 16, 17]), [[14, 0, 2, 2], [0, 2, 2, 2]]);
  assert.equal(grid.moved(3, "ArrowDown"), 19);
});

test("a point is in the cell whose corner is left above it", () => {
  const grid = new Grid(25, 100, 100, 10);
  for (let index = 0; index < 25; index++) {
    const [x, y] = grid.cornerOf(index);
    assert.equal(grid.indexAt(x, y), index);
    assert.equal(grid.indexAt(x + grid.size - 1, y + grid.size - 1), index);
  }
  assert.equal(grid.indexAt(grid.width, 0), -1);
  assert.equal(grid.indexAt(0, grid.height), -1);
  assert.equal(grid.indexAt(-1, 0), -1);
});

test("no cell is behind the last one in its row", () => {
  const grid = new Grid(25, 100, 100, 10);
  assert.equal(grid.columns, 10);
  assert.equal(grid.indexAt(55, 25), -1);
});

test("keys go from cell to cell and stay within the map", () => {
  const grid = new Grid(25, 100, 100, 10);
  const moves = [[3, "ArrowRight", 4], [3, "ArrowLeft", 2], [3, "ArrowDown", 13], [13, "ArrowUp", 3], [0, "ArrowLeft", 0],
    [20, "ArrowDown", 20], [5, "Home", 0], [5, "End", 24], [5, "a", null]];
  for (const [from, key, to] of moves) assert.equal(grid.moved(Number(from), String(key)), to, `${from} ${key}`);
});

test("a run of neighbours is one box in each row", () => {
  const grid = new Grid(25, 100, 100, 10);
  assert.deepEqual(grid.boxesOf([3, 4, 9, 10, 11, 20]), [[30, 0, 20, 10], [90, 0, 10, 10], [0, 10, 20, 10], [0, 20, 10, 10]]);
});
