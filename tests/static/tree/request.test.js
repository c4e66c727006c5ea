import assert from "node:assert/strict";
import test from "node:test";
import { ANSWER, SUMMARY, kindOf, makeRequest, restOf } from "../../../app/static/tree/request.js";

const LIMITS = { context_share: 0.25, repetition_stop: true };
const user = (text, files) => ({ role: "user", text, files });
const assistant = (text) => ({ role: "assistant", text });

test("a request without settings holds the messages and the limits of an answer", () => {
  assert.deepEqual(makeRequest([user("One?"), assistant("1"), user("Two?")], {}, ANSWER), {
    messages: [
      { role: "user", content: "One?" },
      { role: "assistant", content: "1" },
      { role: "user", content: "Two?" },
    ],
    ...LIMITS,
  });
});

test("settings become fields, and the system prompt the first message", () => {
  const settings = { system: "Be brief.", temperature: 0.2, stop: ["END"], thinking: "off", reasoning_effort: "low", seed: 7 };
  assert.deepEqual(makeRequest([user("Why?")], settings, ANSWER), {
    messages: [{ role: "system", content: "Be brief." }, { role: "user", content: "Why?" }],
    ...LIMITS,
    temperature: 0.2,
    seed: 7,
    stop: ["END"],
    reasoning_effort: "low",
    chat_template_kwargs: { enable_thinking: false },
  });
});

test("probabilities are asked for with answers and their rest, and not with summaries", () => {
  const path = [user("Tell."), assistant("Once")];
  const asked = (kind) => {
    const { logprobs, top_logprobs: number } = makeRequest(path, { token_probabilities: "on" }, kind);
    return [logprobs, number];
  };
  assert.deepEqual(asked(ANSWER), [true, 5]);
  assert.deepEqual(asked(restOf(path, { canContinue: true })), [true, 5]);
  assert.deepEqual(asked(SUMMARY), [undefined, undefined]);
});

test("questions whose answer has no text are left out", () => {
  const { messages } = makeRequest([user("Lost?"), assistant(""), user("Again?")], {}, ANSWER);
  assert.deepEqual(messages, [{ role: "user", content: "Again?" }]);
});

test("an answer is continued by the server or, where it cannot, by a question", () => {
  const path = [user("Tell."), assistant("Once")];
  const rest = makeRequest(path, {}, restOf(path, { canContinue: true }));
  assert.deepEqual([rest.continue_final_message, rest.add_generation_prompt, rest.messages.length], [true, false, 2]);
  const asked = makeRequest(path, {}, restOf(path, { canContinue: false }));
  assert.equal(asked.continue_final_message, undefined);
  assert.equal(asked.messages.at(-1).role, "user");
});

test("what a request asks for is not guessed from its messages", () => {
  const path = [user("Tell."), assistant("Once")];
  assert.equal(makeRequest(path, {}, ANSWER).continue_final_message, undefined);
  assert.deepEqual([kindOf([]), kindOf(path), kindOf([...path, user("And?")])], [ANSWER, ANSWER, ANSWER]);
  const summary = [...path, { ...user("Summarize."), keeps: 1 }];
  assert.deepEqual([kindOf(summary), kindOf([...summary, assistant("Short")])], [SUMMARY, SUMMARY]);
  assert.equal(kindOf([...summary, assistant("Short"), user("And?")]), ANSWER);
});

test("files stand before the question in fences longer than any in them", () => {
  const { messages } = makeRequest([user("Why?", [{ name: "a.md", text: "```js\n1\n```\n" }])], {}, ANSWER);
  assert.equal(messages[0].content, "a.md:\n````\n```js\n1\n```\n````\n\nWhy?");
});

test("a file may have any number of fences", () => {
  const { messages } = makeRequest([user("Why?", [{ name: "a.md", text: "``` ".repeat(250_000) }])], {}, ANSWER);
  assert.ok(messages[0].content.startsWith("a.md:\n````\n``` "));
});

const tools = [{ id: "a", name: "weather", arguments: '{"city": "Rome"}' }, { id: "b", name: "time", arguments: "" }];
const calling = (text) => ({ role: "assistant", text, tools });
const given = { role: "user", text: "", results: [{ id: "a", name: "weather", text: "sun" }, { id: "b", name: "time", text: "9" }] };

test("calls and their results are sent together, one message for each result", () => {
  assert.deepEqual(makeRequest([user("How is it?"), calling(""), given], {}, ANSWER).messages, [
    { role: "user", content: "How is it?" },
    {
      role: "assistant",
      content: null,
      tool_calls: [
        { id: "a", type: "function", function: { name: "weather", arguments: '{"city": "Rome"}' } },
        { id: "b", type: "function", function: { name: "time", arguments: "" } },
      ],
    },
    { role: "tool", tool_call_id: "a", content: "sun" },
    { role: "tool", tool_call_id: "b", content: "9" },
  ]);
});

test("calls without results are not sent, and results without their calls are a question", () => {
  const [, answer] = makeRequest([user("How?"), calling("I look."), user("Well?")], {}, ANSWER).messages;
  assert.deepEqual(answer, { role: "assistant", content: "I look." });
  assert.deepEqual(makeRequest([user("How?"), calling(""), user("Well?")], {}, ANSWER).messages.length, 1);
  assert.deepEqual(makeRequest([given], {}, ANSWER).messages, [
    { role: "user", content: "weather:\n```\nsun\n```\n\ntime:\n```\n9\n```" },
  ]);
});

test("results that were not answered are left out with what they answer", () => {
  const path = [user("How?"), calling(""), given, assistant(""), user("Well?")];
  assert.deepEqual(makeRequest(path, {}, ANSWER).messages, [{ role: "user", content: "Well?" }]);
});

test("a summary and its rest are plain text, whatever answers must look like", () => {
  const settings = { json_schema: '{"type": "object"}', tools: '[{"type": "function"}]', stop: ["END"], seed: 7 };
  const path = [user("One?"), assistant("1"), { ...user("Summarize."), keeps: 1 }];
  assert.deepEqual(Object.keys(makeRequest(path, settings, SUMMARY)).sort(), ["context_share", "messages", "repetition_stop", "seed"]);
  const begun = [...path, assistant("Short")];
  const rest = makeRequest(begun, settings, restOf(begun, { canContinue: true }));
  assert.deepEqual([rest.response_format, rest.tools, rest.continue_final_message], [undefined, undefined, true]);
  assert.ok(makeRequest(path, settings, ANSWER).response_format);
});
