/* OpenAI's JavaScript client against servers that test_openai_javascript.py starts: one whose answers it knows, one whose
   answers are JSON, one whose answers are calls, and one that generates a token for each request and then waits. */

import assert from "node:assert/strict";
import { test } from "node:test";

import OpenAI, { AuthenticationError, BadRequestError, NotFoundError } from "openai";

const open = (url) => new OpenAI({ baseURL: `${url}/v1`, apiKey: "right", maxRetries: 0 });
const client = open(process.env.QUIRE_URL);
const held = open(process.env.QUIRE_HELD_URL);
const parsing = open(process.env.QUIRE_PARSING_URL);
const calling = open(process.env.QUIRE_CALLING_URL);
const expected = JSON.parse(process.env.QUIRE_EXPECTED);
const model = "guide";
const messages = [{ role: "user", content: "How warm is it in Oslo and in Rome?" }];
const parameters = { type: "object", properties: { city: { type: "string" } } };
const tools = [{ type: "function", function: { name: "weather", parameters } }];

/** Check a message with the calls of the scripted answer. */
function checkCalls(message) {
  assert.equal(message.content, expected.text);
  const calls = message.tool_calls.map((call) => [call.type, call.function.name, JSON.parse(call.function.arguments)]);
  assert.deepEqual(calls, [["function", "weather", { city: "Oslo" }], ["function", "weather", { city: "Rome" }]]);
  assert.equal(new Set(message.tool_calls.map((call) => call.id)).size, 2);
}

test("a whole chat has its text, finish reason and usage", async () => {
  const answer = await client.chat.completions.create({ model, messages });
  assert.equal(answer.choices[0].message.content, expected.answer);
  assert.equal(answer.choices[0].finish_reason, "stop");
  assert.equal(answer.usage.completion_tokens, expected.numTokens);
  assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + expected.numTokens);
});

test("a streamed chat has the same text, finish reason and usage", async () => {
  const whole = await client.chat.completions.create({ model, messages });
  const options = { stream: true, stream_options: { include_usage: true } };
  let text = "";
  let reason = null;
  let usage = null;
  for await (const chunk of await client.chat.completions.create({ model, messages, ...options })) {
    text += chunk.choices[0]?.delta.content ?? "";
    reason ??= chunk.choices[0]?.finish_reason;
    usage ??= chunk.usage;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(reason, whole.choices[0].finish_reason);
  assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
});

test("a whole answer has its calls and its reasoning", async () => {
  const answer = await client.chat.completions.create({ model, messages, tools });
  checkCalls(answer.choices[0].message);
  assert.equal(answer.choices[0].message.reasoning_content, expected.reasoning);
  assert.equal(answer.choices[0].finish_reason, "tool_calls");
});

test("the stream helper puts calls together by their index", async () => {
  const stream = client.chat.completions.stream({ model, messages, tools });
  let reasoning = "";
  for await (const chunk of stream) {
    reasoning += chunk.choices[0]?.delta.reasoning_content ?? "";
  }
  const { choices } = await stream.finalChatCompletion();
  checkCalls(choices[0].message);
  assert.equal(reasoning, expected.reasoning);
  assert.equal(choices[0].finish_reason, "tool_calls");
});

test("parse returns the value that a schema asks for", async () => {
  const schema = { type: "object", properties: { degrees: { type: "integer" } }, required: ["degrees"] };
  const response_format = { type: "json_schema", json_schema: { name: "weather", strict: true, schema } };
  const answer = await parsing.chat.completions.parse({ model, messages, response_format });
  assert.deepEqual(answer.choices[0].message.parsed, { degrees: 3 });
  const stream = parsing.chat.completions.stream({ model, messages, response_format });
  const { choices } = await stream.finalChatCompletion();
  assert.deepEqual(choices[0].message.parsed, { degrees: 3 });
});

test("parse returns the arguments of strict functions", async () => {
  const strict = [{ type: "function", function: { name: "weather", parameters, strict: true } }];
  const answer = await calling.chat.completions.parse({ model, messages, tools: strict });
  checkCalls(answer.choices[0].message);
  const cities = answer.choices[0].message.tool_calls.map((call) => call.function.parsed_arguments);
  assert.deepEqual(cities, [{ city: "Oslo" }, { city: "Rome" }]);
});

test("log-probabilities are the same, whole and streamed", async () => {
  const body = { model, messages, logprobs: true, top_logprobs: 2 };
  const whole = await client.chat.completions.create(body);
  const streamed = [];
  for await (const chunk of await client.chat.completions.create({ ...body, stream: true })) {
    streamed.push(...(chunk.choices[0]?.logprobs?.content ?? []));
  }
  assert.equal(streamed.length, expected.numTokens);
  assert.deepEqual(streamed, whole.choices[0].logprobs.content);
});

test("completions of two prompts are the same, whole and streamed", async () => {
  const body = { model, prompt: ["Hi", "Ho"], max_tokens: 4 };
  const whole = await client.completions.create(body);
  const texts = ["", ""];
  for await (const chunk of await client.completions.create({ ...body, stream: true })) {
    for (const choice of chunk.choices) {
      texts[choice.index] += choice.text;
    }
  }
  assert.deepEqual(texts, whole.choices.map((choice) => choice.text));
});

test("embeddings are the same as numbers and as base64, which the client asks for by itself", async () => {
  const body = { model, input: ["Hi", "Ho there"] };
  const decoded = await client.embeddings.create(body);
  const numbers = await client.embeddings.create({ ...body, encoding_format: "float" });
  assert.equal(decoded.data.length, 2);
  assert.ok(decoded.data.every((item) => item.embedding.length > 0 && item.embedding.every(Number.isFinite)));
  assert.deepEqual(decoded.data, numbers.data);
});

test("models are listed and retrieved", async () => {
  const names = [];
  for await (const found of client.models.list()) {
    names.push(found.id);
  }
  assert.deepEqual(names, [model]);
  assert.equal((await client.models.retrieve(model)).owned_by, "quire");
});

test("errors are the client's own, with code and parameter", async () => {
  const create = (fields) => client.chat.completions.create({ model, messages, ...fields });
  const found = { code: "model_not_found", param: "model", status: 404 };
  await assert.rejects(create({ model: "gpt-9" }), (error) => {
    assert.ok(error instanceof NotFoundError);
    assert.ok(error.requestID);
    return Object.entries(found).every(([name, value]) => error[name] === value);
  });
  await assert.rejects(create({ messages: [] }), BadRequestError);
  await assert.rejects(create({ functions: [{ name: "f" }] }), { code: "unsupported_parameter", param: "functions" });
  await assert.rejects(create({ top_p: 9, stream: true }), { status: 400, param: "top_p" });
  const stranger = client.withOptions({ apiKey: "wrong" });
  await assert.rejects(stranger.models.list(), AuthenticationError);
});

test("an answer that is left goes on behind the last chunk", async () => {
  const headers = { "X-Quire-Resume": "1" };
  let text = "";
  let path = "";
  for await (const chunk of await client.chat.completions.create({ model, messages, stream: true }, { headers })) {
    text += chunk.choices[0].delta.content ?? "";
    path = `/streams/${chunk.id}?after=${chunk.after}`;
    if (text.length > 8) break;
  }
  assert.notEqual(text, expected.answer);
  for await (const chunk of await client.get(path, { stream: true })) {
    text += chunk.choices[0].delta.content ?? "";
  }
  assert.equal(text, expected.answer);
});

test("a client that begins again, as the AI SDK does, reads the stream as if it had posted", async () => {
  const request = { model, messages, tools, stream: true };
  const begun = await client.chat.completions.create(request, { headers: { "X-Quire-Resume": "1" } }).withResponse();
  const stream = `${client.baseURL}/streams/${begun.response.headers.get("X-Quire-Stream-Id")}`;
  begun.data.controller.abort();
  const headers = { Authorization: "Bearer right" };
  const again = client.withOptions({ fetch: (_, { signal }) => fetch(stream, { headers, signal }) });
  const { choices } = await again.chat.completions.stream(request).finalChatCompletion();
  checkCalls(choices[0].message);
  assert.equal(choices[0].finish_reason, "tool_calls");
  const nothing = await fetch(`${stream}?after=end`, { headers });
  assert.deepEqual([nothing.status, await nothing.text()], [204, ""]);
});

test("a stream that is left aborts its request", async () => {
  const stream = await held.chat.completions.create({ model, messages, stream: true });
  for await (const chunk of stream) {
    assert.equal(chunk.choices[0].delta.role, "assistant");
    break;
  }
});

test("a stream that is aborted ends", async () => {
  const stream = await held.chat.completions.create({ model, messages, stream: true });
  for await (const chunk of stream) {
    assert.equal(chunk.choices[0].delta.role, "assistant");
    stream.controller.abort();
  }
  assert.ok(stream.controller.signal.aborted);
});
