import assert from "node:assert/strict";
import test from "node:test";
import { isShort, isTooLong, numCharacters, tokensOf, tokensPerCharacter } from "../../../app/static/dock/context_meter.js";
import { ANSWER } from "../../../app/static/tree/request.js";

const question = (text, more = {}) => ({ role: "user", text, ...more });
const answer = (text, usage, more = {}) => ({
  role: "assistant", text, state: "done", ...(usage && { usage: { prompt_tokens: usage[0], completion_tokens: usage[1] } }), ...more,
});

test("a branch has the tokens of its last counted answer", () => {
  const path = [question("a"), answer("b", [10, 5]), question("c"), answer("d", [30, 7])];
  assert.equal(tokensOf(path, {}), 37);
  assert.equal(tokensOf(path.slice(0, 2), {}), 15);
  assert.equal(tokensOf([], {}), 0);
});

test("while an answer is written, its tokens so far are added", () => {
  const path = [question("a"), answer("b", [10, 5]), question("c"), answer("d", undefined, { watch: { tokens: 3 } })];
  assert.equal(tokensOf(path, {}), 18);
});

test("an answer that failed adds nothing to the last count", () => {
  const path = [question("a"), answer("b", [10, 5]), question("c"), answer("", undefined, { state: "failed" })];
  assert.equal(tokensOf(path, {}), 15);
});

test("tokens per character are those of the last counted request, with its system prompt and reasoning", () => {
  const path = [question("1234"), answer("12", [10, 4], { reasoning: "12" })];
  assert.equal(tokensPerCharacter(path, {}), 14 / 8);
  assert.equal(tokensPerCharacter(path, { system: "123456" }), 14 / 14);
  assert.equal(tokensPerCharacter([question("1234")], {}), 0);
});

test("after a cut the tokens are an estimate from what is still sent", () => {
  const turn = (text) => [question(text), answer(text, [20, 10])];
  const path = [...turn("0123456789"), ...turn("0123456789")];
  path[3].keeps = 2;
  // 30 tokens for the 40 characters of the last request and its answer; 20 of them are still sent.
  assert.equal(tokensOf(path, {}), 15);
});

test("the context is short when it is nearly full, or the server has refused the last message", () => {
  const path = [question("a"), answer("b", [80, 6])];
  assert.equal(isShort({ messages: path, settings: {} }, 100), true);
  assert.equal(isShort({ messages: path, settings: {} }, 200), false);
  for (const code of ["context_length_exceeded", "kv_capacity_exceeded"]) {
    const refused = [...path, question("c"), answer("", undefined, { code })];
    assert.equal(isTooLong(refused), true);
    assert.equal(isShort({ messages: refused, settings: {} }, 1000), true);
  }
  assert.equal(isTooLong([...path, answer("", undefined, { code: "overloaded" })]), false);
});

test("an answer that continues another has the tokens of that one", () => {
  const watch = { tokens: 9, begun: 7 };
  // Its 7 tokens and their prompt are counted; its continuation has 2.
  const counted = answer("d", undefined, { watch, begunUsage: { prompt_tokens: 30, completion_tokens: 7 } });
  assert.equal(tokensOf([question("a"), answer("b", [10, 5]), question("c"), counted], {}), 39);
  // One that was stopped has no count.
  assert.equal(tokensOf([question("a"), answer("b", [10, 5]), question("c"), answer("d", undefined, { watch })], {}), 24);
});

test("an answer that was stopped keeps its tokens after a reload", () => {
  const stopped = answer("d", undefined, { state: "stopped", figures: { tokens: 4 } });
  assert.equal(tokensOf([question("a"), answer("b", [10, 5]), question("c"), stopped], {}), 19);
});

test("the context is short when the longest answer that is set does not fit", () => {
  const path = [question("a"), answer("b", [500, 100])];
  assert.equal(isShort({ messages: path, settings: {} }, 1000), false);
  assert.equal(isShort({ messages: path, settings: { max_tokens: 450 } }, 1000), true);
  // More than half of the context is not waited for.
  assert.equal(isShort({ messages: path, settings: { max_tokens: 1_000_000 } }, 1201), false);
});

test("calls of tools and their results count, also where an answer has no text", () => {
  const calls = [{ id: "c1", name: "add", arguments: "{}" }];
  const path = [question("ab"), answer("", [10, 4], { calls }), question("", { results: [{ id: "c1", name: "add", text: "5" }] })];
  assert.ok(numCharacters(path, {}, ANSWER) > 3);
});
