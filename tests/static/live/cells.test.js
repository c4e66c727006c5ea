import assert from "node:assert/strict";
import test from "node:test";
import { Cells } from "../../../app/static/live/cells.js";
import { Grid } from "../../../app/static/live/grid.js";
import { Tiles } from "../../../app/static/live/tiles.js";

const PALETTE = { paper: 1, free: 2, faint: 3, pale: 5, ink: 4, hues: [10, 11, 12], deep: [20, 21, 22] };
const hueOf = (owner) => owner % 3;

/** Cells at random. */
function makeCells(count, seed) {
  const states = new Uint8Array(count);
  const owners = new Uint32Array(count);
  for (let at = 0; at < count; at++) {
    seed = (seed * 1103515245 + 12345) % 2 ** 31;
    states[at] = (seed >> 8) % 6;
    owners[at] = [2, 3].includes(states[at]) ? (seed >> 16) % 4 : 0;
  }
  return { states, owners };
}

test("painting what has changed gives the same pixels as painting all", () => {
  for (const [count, width] of [[37, 60], [400, 200], [5000, 90], [900, 90]]) {
    const grid = new Grid(count, width, 90, 18);
    const tiles = new Tiles(PALETTE, grid.size, grid.cellHeight);
    const before = makeCells(count, 1);
    const after = makeCells(count, 2);
    for (let at = 0; at < count; at += 2) [after.states[at], after.owners[at]] = [before.states[at], before.owners[at]];
    const changed = [...after.states.keys()].filter((at) => at % 2);
    const inSteps = new Cells(grid, tiles);
    inSteps.paint(before.states, before.owners, hueOf, null);
    inSteps.paint(after.states, after.owners, hueOf, changed);
    const atOnce = new Cells(grid, tiles);
    atOnce.paint(after.states, after.owners, hueOf, null);
    assert.deepEqual(inSteps.pixels, atOnce.pixels);
  }
});

test("only the rows of pixels are told that were painted", () => {
  const grid = new Grid(100, 100, 100, 10);
  const cells = new Cells(grid, new Tiles(PALETTE, grid.size));
  const { states, owners } = makeCells(100, 3);
  assert.deepEqual(cells.paint(states, owners, hueOf, null), [0, 100]);
  assert.deepEqual(cells.paint(states, owners, hueOf, [34, 41]), [30, 50]);
  assert.deepEqual(cells.paint(states, owners, hueOf, []), [0, 0]);
  assert.deepEqual(cells.paint(makeCells(200, 3).states, owners, hueOf, [150, 199]), [0, 0]);
});
