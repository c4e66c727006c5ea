import assert from "node:assert/strict";
import test from "node:test";
import { makeRequest } from "../../../app/static/conversation/request.js";

const LIMITS = { context_share: 0.25, repetition_stop: true };
const user = (text, files) => ({ role: "user", text, files });
const assistant = (text) => ({ role: "assistant", text });

test("a request without settings holds the messages and the limits of an answer", () => {
  assert.deepEqual(makeRequest([user("One?"), assistant("1"), user("Two?")], {}), {
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
  assert.deepEqual(makeRequest([user("Why?")], settings), {
    messages: [{ role: "system", content: "Be brief." }, { role: "user", content: "Why?" }],
    ...LIMITS,
    temperature: 0.2,
    seed: 7,
    stop: ["END"],
    reasoning_effort: "low",
    chat_template_kwargs: { enable_thinking: false },
  });
});

test("questions whose answer has no text are left out", () => {
  const { messages } = makeRequest([user("Lost?"), assistant(""), user("Again?")], {});
  assert.deepEqual(messages, [{ role: "user", content: "Again?" }]);
});

test("an answer is continued by the server or, where it cannot, by a question", () => {
  const path = [user("Tell."), assistant("Once")];
  assert.equal(makeRequest(path, {}).continue_final_message, true);
  assert.equal(makeRequest(path, {}).messages.length, 2);
  const asked = makeRequest(path, {}, { canContinue: false });
  assert.equal(asked.continue_final_message, undefined);
  assert.equal(asked.messages.at(-1).role, "user");
});

test("files stand before the question in fences longer than any in them", () => {
  const { messages } = makeRequest([user("Why?", [{ name: "a.md", text: "```js\n1\n```\n" }])], {});
  assert.equal(messages[0].content, "a.md:\n````\n```js\n1\n```\n````\n\nWhy?");
});

test("a file may have any number of fences", () => {
  const { messages } = makeRequest([user("Why?", [{ name: "a.md", text: "``` ".repeat(250_000) }])], {});
  assert.ok(messages[0].content.startsWith("a.md:\n````\n``` "));
});

const tools = [{ id: "a", name: "weather", arguments: '{"city": "Rome"}' }, { id: "b", name: "time", arguments: "" }];
const calling = (text) => ({ role: "assistant", text, tools });
const given = { role: "user", text: "", results: [{ id: "a", name: "weather", text: "sun" }, { id: "b", name: "time", text: "9" }] };

test("calls and their results are sent together, one message for each result", () => {
  assert.deepEqual(makeRequest([user("How is it?"), calling(""), given], {}).messages, [
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
  const [, answer] = makeRequest([user("How?"), calling("I look."), user("Well?")], {}).messages;
  assert.deepEqual(answer, { role: "assistant", content: "I look." });
  assert.deepEqual(makeRequest([user("How?"), calling(""), user("Well?")], {}).messages.length, 1);
  assert.deepEqual(makeRequest([given], {}).messages, [
    { role: "user", content: "weather:\n```\nsun\n```\n\ntime:\n```\n9\n```" },
  ]);
});

test("results that were not answered are left out with what they answer", () => {
  const path = [user("How?"), calling(""), given, assistant(""), user("Well?")];
  assert.deepEqual(makeRequest(path, {}).messages, [{ role: "user", content: "Well?" }]);
});

test("a summary is plain text, whatever answers must look like", () => {
  const settings = { response_format: { type: "object" }, tools: [{ type: "function" }], stop: ["END"], seed: 7 };
  const fields = makeRequest([user("One?"), assistant("1"), { ...user("Summarize."), keeps: 1 }], settings);
  assert.deepEqual(Object.keys(fields).sort(), ["context_share", "messages", "repetition_stop", "seed"]);
});
