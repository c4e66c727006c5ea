import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";
import { Decoder } from "../../../app/static/engine/decoder.js";
import { message, stateOf, varint } from "./messages.js";

const run = (count, state, owner) => [...varint(count), state, ...varint(owner)];

const VECTORS = new URL("../../vectors/quire_live.json", import.meta.url);

/** The states and owners that runs `[count, byte, owner]` describe. */
function spread(runs) {
  const cells = runs.flatMap(([count, byte, owner]) => Array(count).fill([byte & ~0x80, owner]));
  return { states: Uint8Array.from(cells, ([state]) => state), owners: Uint32Array.from(cells, ([, owner]) => owner) };
}

test("the recorded messages say what is written beside them", () => {
  const { cases } = JSON.parse(readFileSync(VECTORS, "utf8"));
  assert.ok(cases.length > 5);
  for (const { name, messages } of cases) {
    const decoder = new Decoder();
    for (const { base64, state, runs } of messages) {
      decoder.receive(Uint8Array.from(Buffer.from(base64, "base64")).buffer);
      const { states, owners } = spread(runs);
      assert.deepEqual([decoder.state, decoder.states, decoder.owners], [state, states, owners], name);
    }
  }
});

test("a whole picture is read from its runs", () => {
  const decoder = new Decoder();
  decoder.receive(message(0, 0, stateOf(1000), [...run(300, 0, 0), ...run(200, 2, 7), ...run(500, 3, 300)]));
  assert.deepEqual([decoder.states[0], decoder.states[300], decoder.states[999]], [0, 2, 3]);
  assert.deepEqual([decoder.owners[299], decoder.owners[499], decoder.owners[999]], [0, 7, 300]);
  assert.equal(decoder.changed, null);
});

test("a difference changes the blocks that it names, and tells which", () => {
  const decoder = new Decoder();
  decoder.receive(message(0, 0, stateOf(1000), run(1000, 0, 0)));
  decoder.receive(message(1, 1, stateOf(1000, { time: 5 }), [...run(1, 2, 3), ...run(999, 0x83, 4)]));
  assert.deepEqual([...decoder.states.slice(0, 2), decoder.states[999]], [2, 0, 3]);
  assert.deepEqual([decoder.owners[0], decoder.owners[999]], [3, 4]);
  assert.deepEqual(decoder.changed, [0, 999]);
  assert.equal(decoder.state.time, 5);
});

test("what is no message is refused, and so is a difference to nothing", () => {
  const refused = [
    new ArrayBuffer(3),
    message(1, 1, stateOf(4), run(1, 2, 3)),
    message(9, 1, stateOf(4), run(4, 2, 3)),
    message(0, 1, stateOf(4), run(3, 2, 3)),
    message(0, 1, stateOf(4), run(5, 2, 3)),
    message(0, 1, stateOf(4), [200]),
  ];
  for (const buffer of refused) assert.throws(() => new Decoder().receive(buffer), Error);
});

test("a difference after one that is missing is refused, and a whole picture is not", () => {
  const decoder = new Decoder();
  decoder.receive(message(0, 4, stateOf(4), run(4, 0, 0)));
  assert.throws(() => decoder.receive(message(1, 6, stateOf(4), run(1, 2, 1))), /the number 6/);
  decoder.receive(message(0, 9, stateOf(4), run(4, 2, 1)));
  decoder.receive(message(1, 10, stateOf(4), run(1, 0, 0)));
  assert.deepEqual([...decoder.states], [0, 2, 2, 2]);
});

test("a difference of a block that is not there is refused", () => {
  const decoder = new Decoder();
  decoder.receive(message(0, 0, stateOf(4), run(4, 0, 0)));
  assert.throws(() => decoder.receive(message(1, 1, stateOf(4), run(5, 2, 1))), /the block 5/);
});
