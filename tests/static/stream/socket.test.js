import assert from "node:assert/strict";
import test from "node:test";
import { Socket } from "../../../app/static/stream/socket.js";

class FakeSocket {
  static OPEN = 1;
  /** @type {FakeSocket} */
  static last;
  readyState = 0;
  sent = [];
  isClosed = false;
  /** @type {any} */
  onopen;
  /** @type {any} */
  onmessage;
  /** @type {any} */
  onclose;

  constructor() {
    FakeSocket.last = this;
  }

  send(text) {
    this.sent.push(JSON.parse(text));
  }

  close() {
    this.isClosed = true;
  }
}

function connect(t) {
  t.mock.timers.enable({ apis: ["setTimeout", "setInterval"] });
  const fakes = { WebSocket: FakeSocket, location: { href: "http://localhost/" }, document: { hidden: false } };
  for (const [name, value] of Object.entries(fakes)) Object.defineProperty(globalThis, name, { value, configurable: true });
  let isWelcome = false;
  const handlers = { onWelcome: () => (isWelcome = true), onDraining: () => {}, onFrame: () => {} };
  const connection = new Socket(null, handlers);
  const socket = FakeSocket.last;
  /** @type {number[]} */
  const codes = [];
  connection.closed.then((code) => codes.push(code));
  const pass = async (ms) => {
    t.mock.timers.tick(ms);
    await Promise.resolve();
  };
  return { socket, codes, pass, isWelcome: () => isWelcome };
}

test("a connection that never opens ends as one that was lost", async (t) => {
  const { socket, codes, pass } = connect(t);
  await pass(9_999);
  assert.deepEqual([codes, socket.isClosed], [[], false]);
  await pass(1);
  assert.deepEqual([codes, socket.isClosed], [[1006], true]);
});

test("so does one that is accepted and gets no welcome", async (t) => {
  const { socket, codes, pass } = connect(t);
  socket.readyState = FakeSocket.OPEN;
  socket.onopen();
  assert.deepEqual(socket.sent, [{ t: "hello", protocol: "quire.v1" }]);
  await pass(10_000);
  assert.deepEqual([codes, socket.isClosed], [[1006], true]);
});

test("after the welcome a connection lasts as long as its heartbeats are answered", async (t) => {
  const { socket, codes, pass, isWelcome } = connect(t);
  let now = performance.now();
  t.mock.method(performance, "now", () => now);
  const receive = (frame) => socket.onmessage({ data: JSON.stringify(frame) });
  receive({ t: "welcome", limits: {}, heartbeat_ms: 1000 });
  assert.ok(isWelcome());
  for (let beat = 0; beat < 20; beat += 1) {
    now += 1000;
    receive({ t: "pong", ts: 0 });
    await pass(1000);
  }
  assert.deepEqual(codes, []);
  for (let beat = 0; beat < 3; beat += 1) {
    now += 1000;
    await pass(1000);
  }
  assert.deepEqual([codes, socket.isClosed], [[1006], true]);
});
