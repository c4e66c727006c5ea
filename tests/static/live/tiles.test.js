import assert from "node:assert/strict";
import test from "node:test";
import { SHARED, STATES, USED } from "../../../app/static/engine/states.js";
import { Tiles } from "../../../app/static/live/tiles.js";

const PALETTE = { paper: 1, free: 2, faint: 3, pale: 5, ink: 4, hues: [10, 11, 12], deep: [20, 21, 22] };
const isSame = (a, b) => a.every((pixel, at) => pixel === b[at]);
/** With one colour for all, what is left is the shape. */
const shapeOf = (tile) => tile.map((pixel) => Number(pixel === PALETTE.paper));

test("every two states look different at every size, even in one pixel if the colours are of one request", () => {
  for (let size = 4; size <= 40; size++) {
    const tiles = STATES.map((_, state) => new Tiles(PALETTE, size).tile(state, 1, false));
    tiles.forEach((tile, at) => tiles.slice(0, at).forEach((other) => assert.ok(!isSame(tile, other), `${size} ${at}`)));
  }
});

test("used and shared blocks differ in shape, and not by colour alone", () => {
  for (let size = 4; size <= 40; size++) {
    const tiles = new Tiles(PALETTE, size);
    const [used, shared] = [USED, SHARED].map((state) => shapeOf(tiles.tile(state, 1, false)));
    assert.ok(!isSame(used, shared), String(size));
  }
});

test("cells of one pixel are used or shared by their lightness", () => {
  const tiles = new Tiles(PALETTE, 1);
  assert.deepEqual(STATES.map((_, state) => tiles.tile(state, 2, false)[0]), [2, 5, 12, 22, 4, 4]);
});

test("a cell is joined to the next one by a thread in the gap", () => {
  const tiles = new Tiles(PALETTE, 12);
  const gaps = (tile) => tile.filter((_, at) => at % 12 === 11);
  assert.deepEqual(new Set(gaps(tiles.tile(USED, 1, false))), new Set([PALETTE.paper]));
  assert.deepEqual(new Set(gaps(tiles.tile(USED, 1, true))), new Set([PALETTE.paper, 11]));
});

test("a tile is made once", () => {
  const tiles = new Tiles(PALETTE, 9);
  assert.equal(tiles.tile(USED, 1, true), tiles.tile(USED, 1, true));
});
