import assert from "node:assert/strict";
import test, { afterEach, beforeEach, mock } from "node:test";
import { Keeper } from "../../../app/static/conversation/keeper.js";

let clock;
/** What was stored, and when. */
let stored;
let open;
let keeper;

beforeEach(() => {
  [clock, stored, open] = [5000, [], []];
  mock.timers.enable({ apis: ["setTimeout"] });
  mock.method(performance, "now", () => clock);
  keeper = new Keeper((messages, removed) => stored.push([clock, messages, removed]), () => open);
});

afterEach(() => {
  mock.timers.reset();
  mock.restoreAll();
});

/** Let time pass. */
function pass(ms) {
  clock += ms;
  mock.timers.tick(ms);
}

test("what changes often is stored once a second, the first change at once", () => {
  open = [{ id: "answer" }];
  for (let count = 0; count < 30; count += 1) {
    keeper.soon();
    pass(100);
  }
  assert.deepEqual(stored.map(([at]) => at), [5000, 6000, 7000, 8000]);
  assert.deepEqual(stored[0].slice(1), [open, []]);
});

test("what is done is stored at once, and puts off the next second", () => {
  keeper.save(["message"], ["gone"]);
  pass(400);
  keeper.soon();
  pass(599);
  assert.deepEqual(stored, [[5000, ["message"], ["gone"]]]);
  pass(1);
  assert.deepEqual(stored[1], [6000, [], []]);
});

test("where timers are late, the next change after a second is stored at once", () => {
  keeper.save();
  keeper.soon();
  clock += 1001;
  keeper.soon();
  assert.equal(stored.length, 2);
});

test("without a change nothing is stored", () => {
  keeper.soon();
  keeper.now();
  pass(5000);
  assert.equal(stored.length, 1);
});

test("after the end nothing is stored any more", () => {
  keeper.save();
  keeper.soon();
  keeper.end();
  keeper.save(["late"]);
  pass(5000);
  assert.equal(stored.length, 1);
});
