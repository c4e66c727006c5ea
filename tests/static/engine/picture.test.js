import assert from "node:assert/strict";
import test from "node:test";
import { NUM_HUES, OTHERS } from "../../../app/static/engine/hues.js";
import { Picture } from "../../../app/static/engine/picture.js";
import { groupOf, stateOf } from "./messages.js";

/** A picture of `count` blocks, and a function that changes it as a decoder does. */
function begin(count) {
  const picture = new Picture();
  const states = new Uint8Array(count);
  const owners = new Uint32Array(count);
  const show = (fields, cells = [], now = 0) => {
    for (const [id, state, owner] of cells) [states[id - 1], owners[id - 1]] = [state, owner];
    const changed = picture.latest ? cells.map(([id]) => id - 1) : null;
    picture.receive(/** @type {any} */ ({ state: stateOf(count, fields), states, owners, changed }), now);
  };
  return { picture, show };
}

test("requests that run together have different hues while there are enough", () => {
  const { picture, show } = begin(10);
  const groups = Array.from({ length: NUM_HUES }, (_, at) => groupOf(at + 1, []));
  show({ groups });
  assert.equal(new Set(groups.map(({ n }) => picture.hueOf(n))).size, NUM_HUES);
});

test("a request keeps its hue, and one that begins gets that of one that has ended", () => {
  const { picture, show } = begin(10);
  show({ groups: [groupOf(1, []), groupOf(2, [])] });
  const second = picture.hueOf(2);
  show({ groups: [groupOf(2, [])] });
  show({ groups: [groupOf(3, []), groupOf(2, [])] });
  assert.deepEqual([picture.hueOf(3), picture.hueOf(2)], [1, second]);
});

test("requests of others are of one hue", () => {
  const { picture, show } = begin(10);
  show({ groups: [groupOf(1, [], { own: false }), groupOf(2, [], { own: false })] });
  assert.deepEqual([picture.hueOf(1), picture.hueOf(2), picture.hueOf(0)], [OTHERS, OTHERS, OTHERS]);
});

test("a block tells whose it is, where its tokens stand, and since when", () => {
  const { picture, show } = begin(50);
  show({ time: 10, groups: [groupOf(1, [[0, 40, [5, 2, 9, 1]]])] }, [[5, 2, 1], [6, 2, 1], [9, 2, 1]]);
  show({ time: 12, groups: [groupOf(1, [[0, 40, [5, 2, 9, 1]]]), groupOf(2, [[0, 16, [5, 1]]])] }, [[5, 3, 1]]);
  const shared = picture.storyOf(5);
  assert.deepEqual([shared.state, shared.groups.map(({ n }) => n), shared.from, shared.seconds], ["shared", [1, 2], 0, 0]);
  const third = picture.storyOf(9);
  assert.deepEqual([third.state, third.groups.map(({ n }) => n), third.from, third.seconds], ["used", [1], 32, 2]);
  assert.deepEqual([shared.isOlder, third.isOlder], [false, true]);
  const free = picture.storyOf(50);
  assert.deepEqual([free.state, free.groups, free.from], ["free", [], null]);
});

test("a block that another request has in a whole picture is its since then", () => {
  const picture = new Picture();
  const receive = (time, owners) =>
    picture.receive(/** @type {any} */ ({
      state: stateOf(2, { time, groups: [...owners].map((n) => groupOf(n, [])) }), states: new Uint8Array([2, 2]), owners, changed: null,
    }), 0);
  receive(10, new Uint32Array([1, 2]));
  receive(15, new Uint32Array([1, 3]));
  assert.deepEqual([picture.storyOf(1).seconds, picture.storyOf(2).seconds], [5, 0]);
});

test("the time since which a block is as it is goes on while the engine rests and its picture comes again", () => {
  const { picture, show } = begin(10);
  show({ time: 0 }, [], 5000);
  assert.equal(picture.storyOf(1, 5500).seconds, 0.5);
  show({ time: 0 }, [], 6000);
  assert.deepEqual([picture.storyOf(1, 7000).seconds, picture.storyOf(1).seconds], [2, 0]);
  show({ time: 4 }, [[2, 2, 1]], 9000);
  assert.deepEqual([picture.storyOf(1, 9500).seconds, picture.storyOf(2, 9500).seconds], [4.5, 0.5]);
  picture.beginAnew();
  show({ time: 0 }, [], 20_000);
  assert.equal(picture.storyOf(1, 21_000).seconds, 1);
});

test("a block of a request without a table tells only whose it is", () => {
  const { picture, show } = begin(10);
  show({ groups: [groupOf(4, [], { own: false, tables: undefined })] }, [[3, 2, 4]]);
  const { groups, from } = picture.storyOf(3);
  assert.deepEqual([groups.map(({ n }) => n), from], [[4], null]);
  assert.deepEqual(picture.blocksOf(4), [3]);
});

test("blocks that an ended request has left in the cache are known until another one takes them", () => {
  const { picture, show } = begin(10);
  show({ time: 1, groups: [groupOf(1, [[0, 30, [2, 2]]])] }, [[2, 2, 1], [3, 2, 1]]);
  show({ time: 2 }, [[2, 1, 0], [3, 1, 0]]);
  assert.deepEqual(picture.leftBy("chatcmpl-1-and-the-rest-of-its-id"), [2, 3]);
  show({ time: 3 }, [[3, 2, 5]]);
  show({ time: 4 }, [[3, 1, 0]]);
  assert.deepEqual(picture.leftBy("chatcmpl-1"), [2]);
  assert.deepEqual(picture.leftBy("chatcmpl-9"), []);
});

test("what an ended request has left is still known when a later one has found it there", () => {
  for (const [cached, left] of [[32, [2, 3, 4]], [16, [2, 4]]]) {
    const { picture, show } = begin(10);
    show({ time: 1, groups: [groupOf(1, [[0, 48, [2, 3]]])] }, [[2, 2, 1], [3, 2, 1], [4, 2, 1]]);
    show({ time: 2 }, [[2, 1, 0], [3, 1, 0], [4, 1, 0]]);
    show({ time: 3, groups: [groupOf(2, [[0, 40, [2, 2, 7, 1]]], { cached })] }, [[2, 2, 2], [3, 2, 2], [7, 2, 2]]);
    show({ time: 4 }, [[2, 1, 0], [3, 1, 0], [7, 1, 0]]);
    assert.deepEqual(picture.leftBy("chatcmpl-1"), left);
  }
});

test("a request that ends alone has left also the blocks that no picture has shown it with", () => {
  for (const [other, left] of [[1, [2, 3, 4]], [9, [2, 3]], [0, [2, 3]]]) {
    const { picture, show } = begin(10);
    show({ time: 1, groups: [groupOf(1, [[0, 30, [2, 2]]])] }, [[2, 2, 1], [3, 2, 1]]);
    show({ time: 2, records: [["step", 1.5, 1, false, [[1, 0, 1, 0], [other, 0, 1, 0]]]] }, [[2, 1, 0], [3, 1, 0], [4, 1, 0]]);
    assert.deepEqual(picture.leftBy("chatcmpl-1"), left);
  }
});

test("an answer is of the request whose id begins its own", () => {
  const { picture, show } = begin(10);
  show({ groups: [groupOf(1, [], { own: false, id: undefined }), groupOf(2, [], { id: "chatcmpl-ab" })] });
  assert.equal(picture.find("chatcmpl-abcd").n, 2);
  assert.equal(picture.find("chatcmpl-b"), undefined);
});

test("changes add up until they are taken, and a whole picture is all of them", () => {
  const { picture, show } = begin(10);
  show({});
  assert.equal(picture.takeChanged(), null);
  show({}, [[1, 2, 1]]);
  show({}, [[4, 2, 1], [1, 0, 0]]);
  assert.deepEqual([...picture.takeChanged()], [0, 3]);
  assert.deepEqual([...picture.takeChanged()], []);
});

test("a copied block shines for a moment", () => {
  const { picture, show } = begin(10);
  show({ records: [["copy", 1, 3, 7]] }, [], 1000);
  assert.deepEqual(picture.flashesAt(1000), [[6, 1]]);
  const [[, left]] = picture.flashesAt(2250);
  assert.ok(left > 0.4 && left < 0.6);
  assert.deepEqual(picture.flashesAt(3500), []);
});

test("a step keeps the hues of requests that end with it", () => {
  const { picture, show } = begin(10);
  show({ groups: [groupOf(1, [])] });
  show({ records: [["step", 1, 12, true, [[1, 0, 1, 2], [0, 16, 0, 0]]]] });
  assert.deepEqual(picture.steps, [{ at: 1, ms: 12, isOver: true, shares: [
    { n: 1, hue: 1, prompt: 0, decode: 1, accepted: 2 }, { n: 0, hue: OTHERS, prompt: 16, decode: 0, accepted: 0 }] }]);
});

test("a request that begins and ends between two messages has a hue in its steps, and what is of others has none", () => {
  const { picture, show } = begin(10);
  show({ groups: [groupOf(1, [])], records: [["step", 1, 12, false, [[1, 0, 1, 0], [7, 16, 0, 0], [0, 0, 3, 0]]]] });
  assert.deepEqual(picture.steps[0].shares.map(({ n, hue }) => [n, hue]), [[0, OTHERS], [1, 1], [7, 2]]);
});

test("hues that are kept are given to no later request, until they are no longer kept", () => {
  const { picture, show } = begin(10);
  picture.keepsHues = true;
  show({ groups: [groupOf(1, [])] });
  show({ groups: [] });
  show({ groups: [groupOf(2, [])] });
  assert.deepEqual([picture.hueOf(1), picture.hueOf(2)], [1, 2]);
  picture.keepsHues = false;
  show({ groups: [groupOf(2, [])] });
  assert.equal(picture.hueOf(1), OTHERS);
});

test("what paging saves counts shared blocks once", () => {
  const { picture, show } = begin(50);
  assert.equal(picture.saving, null);
  show({ groups: [groupOf(1, [[0, 40, [5, 3]]]), groupOf(2, [[0, 20, [5, 1, 20, 1]]])] });
  assert.deepEqual(picture.saving, { held: 4, empty: 20, slots: 64, reserved: 16 });
});

test("slots that are empty count once for all answers that share their block, and with those of blocks not begun", () => {
  const { picture, show } = begin(50);
  const shared = [0, 1, 2].map((choice) => [choice, 20, [5, 2]]);
  show({ groups: [groupOf(1, shared), groupOf(2, [[0, 32, [10, 1, 20, 3]]]), groupOf(3, [[0, 16, [30, 1]]])] });
  assert.deepEqual([picture.saving.held, picture.saving.empty], [7, 12 + 32]);
});

test("a request that waits for its reader holds its blocks, and one that has none reserves nothing", () => {
  const { picture, show } = begin(50);
  const paused = groupOf(1, [[0, 40, [5, 3]], [1, 20, [5, 1, 20, 1]]], { state: "paused", rows: 0 });
  show({ groups: [paused, groupOf(2, [[0, 0, []]], { state: "waiting", rows: 0 })] });
  assert.deepEqual(picture.saving, { held: 4, empty: 20, slots: 64, reserved: 16 });
});

test("on another connection numbers and times mean something else", () => {
  const { picture, show } = begin(10);
  show({ time: 500, groups: [groupOf(1, [], { own: false })], records: [["step", 499, 5, false, [[1, 0, 1, 0]]], ["copy", 499, 1, 2]] });
  picture.beginAnew();
  assert.deepEqual([picture.steps, picture.flashesAt(0)], [[], []]);
  show({ time: 0, groups: [groupOf(1, [[0, 16, [3, 1]]])] }, [[3, 2, 1]]);
  show({ time: 4, groups: [groupOf(1, [[0, 16, [3, 1]]])] });
  assert.deepEqual([picture.hueOf(1), picture.storyOf(7).seconds], [1, 4]);
  assert.deepEqual(picture.leftBy("chatcmpl-1"), []);
});
