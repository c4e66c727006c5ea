import assert from "node:assert/strict";
import test from "node:test";
import { append, newAnswer } from "../../../app/static/tree/answer.js";
import { doubtOf, withTokens } from "../../../app/static/tree/probabilities.js";

const bytesOf = (text) => [...new TextEncoder().encode(text)];

/** An entry of OpenAI's; `best` are bytes and probabilities, of the token itself too if it is one of the best. */
const entry = (bytes, p, best = []) => ({
  bytes, logprob: Math.log(p), top_logprobs: best.map(([other, q]) => ({ bytes: other, logprob: Math.log(q) })),
});
const word = (text, p, best = []) => entry(bytesOf(text), p, best.map(([other, q]) => [bytesOf(other), q]));

const makeAnswer = (begun = null) => newAnswer("c", null, {}, begun, 1);

test("a token has its probability and what else it might have been, but what was next to impossible", () => {
  const [token] = withTokens([], [word(" the", 0.25, [[" a", 0.5], [" the", 0.25], [" an", 0.01], [" it", 0.0004]])], 1);
  assert.deepEqual(token, { text: " the", p: 0.25, top: [{ text: " a", p: 0.5 }, { text: " an", p: 0.01 }] });
});

test("the text of all tokens is that of the answer, however characters and deltas are divided", () => {
  const text = "Zoë 🧵🧶 ﻿ok";
  const bytes = bytesOf(text);
  for (let size = 1; size <= 5; size += 1) {
    let tokens = [];
    for (let at = 0; at < bytes.length; at += size) tokens = withTokens(tokens, [entry(bytes.slice(at, at + size), 0.5)], 1);
    assert.equal(tokens.map((token) => token.text).join(""), text);
    assert.ok(tokens.every((token) => token.bytes === undefined && token.text));
  }
});

test("tokens that make one character are one, as probable as all of them", () => {
  const [first, second, third, fourth] = bytesOf("🧵");
  const begun = withTokens([], [entry([first, second], 0.5, [[bytesOf("a"), 0.4]])], 1);
  assert.deepEqual(begun, [{ text: "", p: 0.5, top: [{ text: "a", p: 0.4 }], bytes: [first, second] }]);
  const tokens = withTokens(begun, [entry([third], 0.5), entry([fourth], 0.8)], 2);
  assert.deepEqual(tokens, [{ text: "🧵", p: 0.2, numTokens: 3 }]);
  assert.equal(begun.length, 1, "what waits to be stored stays as it is");
});

test("bytes that are no text do not wait for more", () => {
  assert.deepEqual(withTokens([], [entry([0xff], 0.5), word("a", 0.5)], 2).map(({ text }) => text), ["\ufffd", "a"]);
});

test("the token that ended an answer is none of its text, also behind a character that is cut", () => {
  const tokens = withTokens([], [entry([0xf0], 0.5), word("<end>", 0.9)], 1);
  assert.deepEqual(tokens.map(({ text, isEnd }) => [text, isEnd]), [["", undefined], ["<end>", true]]);
});

test("the less probable a token was, the more it is in doubt; one of which nothing is known is not", () => {
  assert.deepEqual([1, 0.8, 0.79, 0.5, 0.49, 0.2, 0.05, undefined].map((p) => doubtOf({ text: "", p })), [0, 0, 1, 1, 2, 3, 4, 0]);
});

test("an answer keeps the tokens of its deltas, and none if they were not asked for", () => {
  const answer = makeAnswer();
  append(answer, { k: 1, x: "Once" }, 1);
  assert.equal(answer.tokens, undefined);
  const asked = makeAnswer();
  append(asked, { k: 1, x: "Once", lp: [word("Once", 0.5)] }, 1);
  append(asked, { k: 0, x: "", lp: [word("<end>", 0.5)] }, 2);
  assert.deepEqual(asked.tokens.map(({ text, isEnd }) => [text, Boolean(isEnd)]), [["Once", false], ["<end>", true]]);
});

test("a part of an answer that was written without probabilities has none, before and behind the others", () => {
  const late = makeAnswer({ id: "a", text: "Once" });
  append(late, { k: 1, x: " upon", lp: [word(" upon", 0.5)] }, 1);
  assert.deepEqual(late.tokens.map(({ text, p }) => [text, p]), [["Once", undefined], [" upon", 0.5]]);
  const early = makeAnswer({ id: "a", text: "Once", tokens: [{ text: "Once", p: 0.5, top: [] }] });
  append(early, { k: 1, x: " upon" }, 1);
  append(early, { k: 0, r: "hm" }, 2);
  assert.deepEqual(early.tokens.map(({ text, p }) => [text, p]), [["Once", 0.5], [" upon", undefined]]);
});
