import assert from "node:assert/strict";
import test from "node:test";
import { HttpConnection } from "../../../app/static/stream/http_connection.js";
import { Stops } from "../../../app/static/stream/stops.js";
import { WebStorage } from "../../../app/static/store/web_storage.js";

const settled = () => new Promise((resolve) => setImmediate(resolve));
const kept = { position: { stream: "s/1", after: [3] } };

/** A server that answers each DELETE with the next of these states, null: not at all. */
function answerWith(t, ...states) {
  const deleted = [];
  t.mock.method(globalThis, "fetch", async (address, { method, headers }) => {
    deleted.push([method, address, headers?.Authorization]);
    const status = states.shift();
    if (!status) throw new TypeError("refused");
    return new Response(null, { status });
  });
  return deleted;
}

/** The storage of a tab, where it is blocked. */
const makeStorage = () => new WebStorage(() => {
  throw new Error("blocked");
});

function makeConnection() {
  const sent = [];
  return {
    sent,
    start: (id, request, key) => sent.push(["start", id, request, key]),
    cancel: (id) => sent.push(["cancel", id]),
  };
}

test("a stop of a stream that the server keeps is told by each connection until the server has ended it", async (t) => {
  for (const last of [204, 404]) {
    const deleted = answerWith(t, null, 503, last);
    const stops = new Stops(makeStorage());
    const connection = makeConnection();
    stops.add("a", kept);
    for (let number = 1; number <= 5; number += 1) {
      stops.tellAll(connection, "key");
      await settled();
      assert.equal(deleted.length, Math.min(number, 3));
    }
    assert.deepEqual(deleted[0], ["DELETE", "/v1/streams/s%2F1", "Bearer key"]);
    assert.deepEqual(connection.sent, []);
    t.mock.restoreAll();
  }
});

test("a stop of a request that was not accepted is told with the request, whose key has the answer that it began", () => {
  const stops = new Stops(makeStorage());
  const connection = makeConnection();
  const request = { messages: [] };
  stops.add("a", { request });
  stops.tellAll(connection, null);
  assert.deepEqual(connection.sent, [["start", "a", request, "a"], ["cancel", "a"]]);
  stops.settle("a");
  stops.tellAll(connection, null);
  assert.equal(connection.sent.length, 2);
});

test("a stop that ends every connection is not told for ever", () => {
  const stops = new Stops(makeStorage());
  const connection = makeConnection();
  stops.add("a", { request: {} });
  for (let number = 0; number < 9; number += 1) stops.tellAll(connection, null);
  assert.equal(connection.sent.length, 6);
});

test("over HTTP a stop is confirmed when the server has ended what it keeps, and not before", async (t) => {
  const deleted = answerWith(t, 200, null, 200, 204);
  t.mock.method(globalThis, "setInterval", () => 0);
  const start = globalThis.fetch;
  t.mock.method(globalThis, "fetch", async (address, request) => {
    const { status } = await start(address, request);
    return new Response(status === 200 ? "" : null, { status, headers: { "X-Quire-Stream-Id": "s1" } });
  });
  const stops = new Stops(makeStorage());
  const onFrame = (stream) => stream.isOver && stops.settle(stream.id);
  stops.add("a", { request: {} });
  for (let number = 0; number < 3; number += 1) {
    stops.tellAll(new HttpConnection(null, { onWelcome: () => {}, onDraining: () => {}, onFrame }), null);
    for (let turn = 0; turn < 9; turn += 1) await settled();
  }
  assert.deepEqual(deleted.map(([method]) => method), ["POST", "DELETE", "POST", "DELETE"]);
});

test("a stop that the server has not confirmed outlives the page, and one that it has does not", () => {
  const storage = makeStorage();
  const connection = makeConnection();
  const stops = new Stops(storage);
  stops.add("a", { request: { messages: [] } });
  stops.add("b", { request: {} });
  stops.settle("b");
  new Stops(storage).tellAll(connection, null);
  assert.deepEqual(connection.sent, [["start", "a", { messages: [] }, "a"], ["cancel", "a"]]);
  new Stops(storage).settle("a");
  assert.deepEqual(storage.names, []);
});
