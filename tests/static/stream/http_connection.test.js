import assert from "node:assert/strict";
import test from "node:test";
import { readEvents } from "../../../app/static/stream/event_source.js";
import { ChunkReader, HttpConnection } from "../../../app/static/stream/http_connection.js";

async function eventsOf(bytes, size) {
  const body = new ReadableStream({
    start(controller) {
      for (let at = 0; at < bytes.length; at += size) controller.enqueue(bytes.slice(at, at + size));
      controller.close();
    },
  });
  const events = [];
  for await (const event of readEvents(body)) events.push(event);
  return events;
}

test("events are the same for every cut of the bytes, with comments and all ends of lines", async () => {
  const text = ': \ndata: {"a":"é🧵"}\n\n: \r\ndata: two\r\ndata:lines\r\n\r\nid: 3\ndata: [DONE]\n\ndata: cut';
  for (let size = 1; size < 20; size += 1) {
    assert.deepEqual(await eventsOf(new TextEncoder().encode(text), size), ['{"a":"é🧵"}', "two\nlines", "[DONE]"]);
  }
});

test("chunks of a stream that is kept become frames with its numbers, behind those that were received before", () => {
  const reader = new ChunkReader([3]);
  const chunk = (content, after, count) => ({
    choices: [{ index: 0, delta: { content } }], after, usage: { completion_tokens: count },
  });
  assert.deepEqual(reader.read(chunk("a", "5", 5)), [{ t: "delta", i: 0, n: 4, k: 2, x: "a" }]);
  assert.deepEqual(reader.read(chunk("held back", "6", 5)), [{ t: "delta", i: 0, n: 6, k: 0, x: "held back" }]);
});

test("chunks with probabilities become frames with them, also the one of the token that ended the answer", () => {
  const reader = new ChunkReader([0]);
  const chunk = (delta, content, after, count) => ({
    choices: [{ index: 0, delta, logprobs: { content } }], after, usage: { completion_tokens: count },
  });
  assert.deepEqual(reader.read(chunk({ content: "a" }, ["of a"], "1", 1)), [{ t: "delta", i: 0, n: 1, k: 1, x: "a", lp: ["of a"] }]);
  assert.deepEqual(reader.read(chunk({}, ["of the end"], "2", 1)), [{ t: "delta", i: 0, n: 2, k: 0, x: "", lp: ["of the end"] }]);
});

test("chunks of several answers become frames with the numbers of each", () => {
  const chunk = (index, content, count) => ({ choices: [{ index, delta: { content } }], usage: { completion_tokens: count } });
  const numbers = (reader, ...chunks) => chunks.flatMap((each) => reader.read(each)).map(({ i, n, k }) => [i, n, k]);
  assert.deepEqual(
    numbers(new ChunkReader([0, 0]), chunk(0, "a", 2), chunk(1, "b", 1), chunk(0, "c", 3), chunk(1, "d", 4)),
    [[0, 1, 2], [1, 1, 1], [0, 3, 1], [1, 2, 3]],
  );
  const kept = (index, content, count, after) => ({ ...chunk(index, content, count), after });
  assert.deepEqual(
    numbers(new ChunkReader([2, 1]), kept(1, "d", 4, "2.4"), kept(0, "c", 3, "3.4")),
    [[1, 2, 3], [0, 3, 1]],
  );
});

test("the end of an answer that is not kept has no frame for its probabilities alone", () => {
  const reader = new ChunkReader();
  const end = { choices: [{ index: 0, delta: {}, logprobs: { content: ["of the end"] } }], usage: { completion_tokens: 0 } };
  assert.deepEqual(reader.read(end), []);
});

test("chunks become frames whose tokens are those of the usage", () => {
  const reader = new ChunkReader();
  const chunk = (delta, count, finish_reason = null) => ({
    choices: [{ index: 0, delta, finish_reason }], usage: { completion_tokens: count },
  });
  assert.deepEqual(reader.read(chunk({ role: "assistant" }, 0)), []);
  assert.deepEqual(reader.read(chunk({ reasoning_content: "hm" }, 2)), [{ t: "delta", i: 0, n: 1, k: 2, x: "", r: "hm" }]);
  assert.deepEqual(reader.read(chunk({ content: "a" }, 5)), [{ t: "delta", i: 0, n: 3, k: 3, x: "a" }]);
  const calls = [{ index: 0, id: "c", function: { name: "f", arguments: "{}" } }];
  assert.deepEqual(reader.read(chunk({ tool_calls: calls }, 6, "tool_calls")), [
    { t: "delta", i: 0, n: 6, k: 1, x: "", tool: [{ k: 0, id: "c", name: "f" }, { k: 0, a: "{}" }] },
    { t: "finish", i: 0, n: 6, finish_reason: "tool_calls" },
  ]);
  const repeated = { index: 0, delta: {}, finish_reason: "length", stop_reason: "repetition" };
  assert.deepEqual(reader.read({ choices: [repeated] }), [
    { t: "finish", i: 0, n: 6, finish_reason: "length", stop_reason: "repetition" },
  ]);
  assert.deepEqual(reader.read({ choices: [], usage: { completion_tokens: 7 } }), []);
  assert.equal(reader.usage.completion_tokens, 7);
});

/** Requests of the page: the test decides when each one is answered, and with which events. */
function makeServer() {
  /** @type {{answer: (status: number, ...events: object[]) => void, signal: AbortSignal}[]} */
  const requests = [];
  const fetch = (_address, { signal }) => new Promise((resolve) => {
    const answer = (status, ...events) => {
      const data = [...events.map((event) => `data: ${JSON.stringify(event)}\n\n`), "data: [DONE]\n\n"].join("");
      resolve(new Response(status === 200 ? data : JSON.stringify(events[0]), { status }));
    };
    requests.push({ answer, signal });
  });
  return { requests, fetch };
}

test("an answer goes on when a later one is refused, because the server is shutting down", async (t) => {
  const { requests, fetch } = makeServer();
  t.mock.method(globalThis, "fetch", fetch);
  const told = [];
  const connection = new HttpConnection(null, {
    onWelcome: () => {},
    onDraining: () => told.push("draining"),
    onFrame: (stream, frame) => told.push(`${stream.id} ${/** @type {any} */ (frame).t}`),
  });
  connection.closed.then((code) => told.push(code));
  connection.start("first", { messages: [] });
  connection.start("second", { messages: [] });
  requests[1].answer(503, { error: { code: "draining", message: "The server is shutting down.", param: null } });
  while (told.length < 2) await new Promise((resolve) => setImmediate(resolve));
  assert.deepEqual(told, ["second error", "draining"]);
  assert.ok(!requests[0].signal.aborted);
  requests[0].answer(200, { choices: [{ index: 0, delta: { content: "Yes." }, finish_reason: "stop" }] });
  assert.equal(await connection.closed, 1012);
  assert.deepEqual(told.slice(2), ["first accepted", "first delta", "first finish", "first done", 1012]);
});

test("while nothing is asked, a server that is gone ends the connection", async (t) => {
  t.mock.timers.enable({ apis: ["setInterval"] });
  let isThere = true;
  let numAsked = 0;
  t.mock.method(globalThis, "fetch", async () => {
    numAsked += 1;
    if (!isThere) throw new TypeError("refused");
    return new Response("{}");
  });
  const connection = new HttpConnection(null, { onWelcome: () => {}, onDraining: () => {}, onFrame: () => {} });
  /** @type {number[]} */
  const codes = [];
  connection.closed.then((code) => codes.push(code));
  const pass = async () => {
    t.mock.timers.tick(15_000);
    await new Promise((resolve) => setImmediate(resolve));
  };
  for (let beat = 0; beat < 3; beat += 1) await pass();
  assert.deepEqual([codes, numAsked], [[], 3]);
  isThere = false;
  await pass();
  assert.deepEqual(codes, [1006]);
  await pass();
  assert.equal(numAsked, 4, "and is not asked any more");
});

test("an answer is started again with its key, and its rest is asked for by its position", async (t) => {
  const requests = [];
  t.mock.method(globalThis, "setInterval", () => 0);
  t.mock.method(globalThis, "fetch", (address, { method, headers, signal }) => {
    requests.push({ address, method, headers });
    const data = `data: ${JSON.stringify({ choices: [{ index: 0, delta: { content: "Hi" } }], after: "1" })}\n\n`;
    const body = new ReadableStream({
      start(controller) {
        controller.enqueue(new TextEncoder().encode(data));
        signal?.addEventListener("abort", () => controller.error(signal.reason));
      },
    });
    return Promise.resolve(new Response(method === "DELETE" ? null : body, { headers: { "X-Quire-Stream-Id": "s/1" } }));
  });
  const connection = new HttpConnection("key", { onWelcome: () => {}, onDraining: () => {}, onFrame: () => {} });
  const stream = connection.start("a", { messages: [] }, "k1");
  while (!stream.position?.after[0]) await new Promise((resolve) => setImmediate(resolve));
  assert.deepEqual(stream.position, { stream: "s/1", after: [1] });
  assert.deepEqual([requests[0].headers["X-Quire-Resume"], requests[0].headers["Idempotency-Key"]], ["1", "k1"]);
  connection.cancel("a");
  const rest = connection.resume("b", { stream: "s/1", after: [1] });
  while (!rest.isAccepted) await new Promise((resolve) => setImmediate(resolve));
  assert.deepEqual(requests.slice(1).map(({ address, method = "GET" }) => `${method} ${address}`), [
    "DELETE /v1/streams/s%2F1", "GET /v1/streams/s%2F1?after=1",
  ]);
  assert.ok(requests.every(({ headers }) => headers.Authorization === "Bearer key"));
});

test("an answer that is stopped before its first byte is ended when it has a name", async (t) => {
  let answer;
  const deleted = [];
  t.mock.method(globalThis, "setInterval", () => 0);
  t.mock.method(globalThis, "fetch", (address, { method }) => {
    if (method === "DELETE") deleted.push(address);
    return method === "DELETE" ? Promise.resolve(new Response(null)) : new Promise((resolve) => (answer = resolve));
  });
  const connection = new HttpConnection(null, { onWelcome: () => {}, onDraining: () => {}, onFrame: () => {} });
  connection.start("a", { messages: [] }, "k1");
  connection.cancel("a");
  assert.deepEqual(deleted, []);
  answer(new Response("", { headers: { "X-Quire-Stream-Id": "s1" } }));
  while (!deleted.length) await new Promise((resolve) => setImmediate(resolve));
  assert.deepEqual(deleted, ["/v1/streams/s1"]);
});

test("an answer that begins when its connection has just ended is not taken for one that was cancelled", async (t) => {
  let answer;
  let now = 0;
  const asked = [];
  t.mock.method(Date, "now", () => now);
  t.mock.method(globalThis, "setInterval", () => 0);
  t.mock.method(globalThis, "fetch", (_address, { method }) => {
    asked.push(method);
    return new Promise((resolve) => (answer = resolve));
  });
  const connection = new HttpConnection(null, { onWelcome: () => {}, onDraining: () => {}, onFrame: () => {} });
  connection.start("a", { messages: [] }, "k1");
  now = 60_000;
  connection.check();
  answer(new Response("", { headers: { "X-Quire-Stream-Id": "s1" } }));
  assert.equal(await connection.closed, 1006);
  for (let turn = 0; turn < 9; turn += 1) await new Promise((resolve) => setImmediate(resolve));
  assert.deepEqual(asked, ["POST"]);
});

test("a connection that a sleep has left behind is given up, also if the browser does not tell", async (t) => {
  let now = 0;
  t.mock.method(Date, "now", () => now);
  t.mock.method(globalThis, "setInterval", () => 0);
  const { requests, fetch } = makeServer();
  t.mock.method(globalThis, "fetch", fetch);
  const connection = new HttpConnection(null, { onWelcome: () => {}, onDraining: () => {}, onFrame: () => {} });
  connection.start("a", { messages: [] }, "k1");
  now = 20_000;
  connection.check();
  assert.ok(!requests[0].signal.aborted);
  now = 60_000;
  connection.check();
  assert.equal(await connection.closed, 1006);
  assert.ok(requests[0].signal.aborted);
});

test("an open answer needs no heartbeats", async (t) => {
  t.mock.timers.enable({ apis: ["setInterval"] });
  const { requests, fetch } = makeServer();
  t.mock.method(globalThis, "fetch", fetch);
  const connection = new HttpConnection(null, { onWelcome: () => {}, onDraining: () => {}, onFrame: () => {} });
  connection.start("first", { messages: [] });
  t.mock.timers.tick(60_000);
  assert.equal(requests.length, 1);
});
