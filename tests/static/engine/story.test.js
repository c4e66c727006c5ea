import assert from "node:assert/strict";
import test from "node:test";
import { tellStep, tellStory } from "../../../app/static/engine/story.js";

const groups = (...numbers) => /** @type {any[]} */ (numbers.map((n) => ({ n })));

test("the story of a block is one sentence", () => {
  const stories = [
    [{ id: 7, state: "free", groups: [], from: null, seconds: 4.2 }, "Block 7 is free, for 4.2 s."],
    [{ id: 7, state: "cached", groups: [], from: null, seconds: 4.2, isOlder: true }, "Block 7 is cached, for at least 4.2 s."],
    [{ id: 7, state: "used", groups: groups(3), from: 32, seconds: 0 }, "Block 7 is used by request 3: tokens 33 to 48, just now."],
    [{ id: 7, state: "shared", groups: groups(3, 4, 9), from: 0, seconds: 12 },
      "Block 7 is shared by requests 3, 4 and 9: tokens 1 to 16, for 12.0 s."],
    [{ id: 7, state: "shared", groups: groups(1, 2, 3, 4, 5), from: 0, seconds: 12 },
      "Block 7 is shared by 5 requests: tokens 1 to 16, for 12.0 s."],
    [{ id: 7, state: "shared", groups: [{ n: 1, tables: [[0, 9, [7, 1]], [1, 9, [7, 1]]] }], from: 0, seconds: 12 },
      "Block 7 is shared by the answers of request 1: tokens 1 to 16, for 12.0 s."],
  ];
  for (const [story, text] of stories) assert.equal(tellStory(/** @type {any} */ (story), 16), text);
});

test("the story of a step counts what was done in it", () => {
  const share = { n: 1, hue: 1, prompt: 0, decode: 1, accepted: 0 };
  const steps = [
    [{ at: 0, ms: 0.141, isOver: false, shares: [share] }, "A step of 0.14 ms for 1 request, 1 token written."],
    [{ at: 0, ms: 120, isOver: true, shares: [share, { ...share, prompt: 512, decode: 0 }, { ...share, accepted: 3 }] },
      "A step of 0.12 s for 3 requests, 512 prompt tokens read, 2 tokens written, 3 draft tokens accepted; longer than the target."],
    // The share of all others, with `--live-view own`.
    [{ at: 0, ms: 12, isOver: false, shares: [{ ...share, n: 0, hue: 0, decode: 4 }] }, "A step of 12 ms for requests of others, 4 tokens written."],
    [{ at: 0, ms: 12, isOver: false, shares: [share, { ...share, n: 0, hue: 0, decode: 4 }] },
      "A step of 12 ms for your request and those of others, 5 tokens written."],
    [{ at: 0, ms: 12, isOver: false, shares: [share, { ...share, n: 2, prompt: 5 }, { ...share, n: 0, hue: 0, prompt: 48, decode: 0 }] },
      "A step of 12 ms for 2 requests of yours and those of others, about 53 prompt tokens read, 2 tokens written."],
  ];
  for (const [step, text] of steps) assert.equal(tellStep(/** @type {any} */ (step)), text);
});
