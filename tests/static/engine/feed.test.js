import assert from "node:assert/strict";
import test from "node:test";
import { Feed } from "../../../app/static/engine/feed.js";

class FakeSocket {
  /** @type {FakeSocket[]} */
  static made = [];
  sent = [];
  isClosed = false;
  readyState = 1;
  /** @type {any} */
  onopen;
  /** @type {any} */
  onmessage;
  /** @type {any} */
  onclose;

  constructor(url, protocol) {
    this.url = String(url);
    this.protocol = protocol;
    FakeSocket.made.push(this);
  }

  send(text) {
    this.sent.push(JSON.parse(text));
  }

  close() {
    this.isClosed = true;
  }
}

/** `health` is what the server says of itself, null while nobody answers. */
function open(t, { key = null, hidden = false, onMessage = () => {}, health = null } = {}) {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const page = Object.assign(new EventTarget(), { hidden });
  const server = { health };
  const fetch = async () => {
    if (server.health === null) throw new TypeError("Failed to fetch");
    return { json: async () => ({ status: server.health }) };
  };
  const fakes = { WebSocket: FakeSocket, location: { href: "https://quire.example/#1" }, document: page, fetch };
  for (const [name, value] of Object.entries(fakes)) Object.defineProperty(globalThis, name, { value, configurable: true });
  FakeSocket.made = [];
  const phases = [];
  const feed = new Feed(key, { onMessage, onPhase: (phase) => phases.push(phase) });
  const hide = (now) => {
    page.hidden = now;
    page.dispatchEvent(new Event("visibilitychange"));
  };
  return { feed, phases, hide, server, sockets: FakeSocket.made };
}

/** A handshake fails, and the server has been asked why. */
async function fail(socket) {
  await socket.onclose({ code: 1006 });
}

test("the key goes with hello, and not into the address", (t) => {
  const { sockets } = open(t, { key: "secret" });
  sockets[0].onopen();
  assert.deepEqual([sockets[0].url, sockets[0].protocol], ["wss://quire.example/live", "quire.live.v1"]);
  assert.deepEqual(sockets[0].sent, [{ t: "hello", key: "secret" }]);
});

test("a connection that nobody needs any more is closed when it is open, and says nothing", (t) => {
  const { feed, sockets } = open(t);
  sockets[0].readyState = 0;
  feed.close();
  assert.equal(sockets[0].isClosed, false);
  sockets[0].onopen();
  assert.deepEqual([sockets[0].isClosed, sockets[0].sent], [true, []]);
});

test("nobody is connected while the page is hidden", (t) => {
  const { sockets, hide } = open(t, { hidden: true });
  assert.equal(sockets.length, 0);
  hide(false);
  assert.equal(sockets.length, 1);
  hide(true);
  assert.ok(sockets[0].isClosed);
  hide(false);
  assert.equal(sockets.length, 2);
});

test("a lost connection is tried again, later and later, until the view is closed", async (t) => {
  const { sockets, phases, feed } = open(t);
  await fail(sockets[0]);
  t.mock.timers.tick(500);
  assert.deepEqual([sockets.length, phases], [2, ["connecting", "lost", "connecting"]]);
  await fail(sockets[1]);
  t.mock.timers.tick(499);
  assert.equal(sockets.length, 2);
  t.mock.timers.tick(501);
  assert.equal(sockets.length, 3);
  await fail(sockets[2]);
  feed.close();
  t.mock.timers.tick(60_000);
  assert.equal(sockets.length, 3);
});

test("a view that is refused for good is not tried again, and the page is told why", (t) => {
  for (const [code, phase] of Object.entries({ 4401: "locked", 4406: "refused", 4400: "refused", 1008: "refused" })) {
    const { sockets, phases } = open(t);
    sockets[0].onclose({ code: Number(code) });
    t.mock.timers.tick(60_000);
    assert.deepEqual([sockets.length, phases.at(-1)], [1, phase]);
    t.mock.timers.reset();
  }
});

test("a server that cannot be reached or is not ready is not said to hide its engine, however long that takes", async (t) => {
  const { sockets, phases, server } = open(t);
  for (let attempt = 0; attempt < 12; attempt++) {
    server.health = [null, "loading", "draining"][attempt % 3];
    await fail(sockets[attempt]);
    assert.equal(phases.at(-1), server.health ? "starting" : "lost");
    t.mock.timers.tick(8000);
  }
  server.health = "ready";
  await fail(sockets[12]);
  // It may have become ready after the handshake.
  assert.equal(phases.at(-1), "lost");
});

test("a server that is ready, and lets no view be opened, hides its engine; it is tried again", async (t) => {
  const { sockets, phases } = open(t, { health: "ready" });
  for (let attempt = 0; attempt < 3; attempt++) {
    await fail(sockets[attempt]);
    t.mock.timers.tick(8000);
  }
  sockets[3].onopen();
  sockets[3].onclose({ code: 4429 });
  t.mock.timers.tick(8000);
  await fail(sockets[4]);
  const told = phases.filter((phase) => phase !== "connecting");
  assert.deepEqual(told, ["lost", "hidden", "hidden", "crowded", "lost"]);
});

/** So long that a server that has accepted the connection is asked what it is doing, and has answered. */
async function waitForNothing(t) {
  t.mock.timers.tick(3000);
  await new Promise((resolve) => setImmediate(resolve));
}

test("a server that accepts the connection and sends nothing is asked what it is doing, until a message comes", async (t) => {
  const { sockets, phases, server } = open(t, { health: "loading" });
  sockets[0].onopen();
  t.mock.timers.tick(2999);
  assert.deepEqual(phases, ["connecting"]);
  for (const health of ["loading", "loading", null, "ready"]) {
    server.health = health;
    await waitForNothing(t);
  }
  sockets[0].onmessage({ data: new ArrayBuffer(0) });
  server.health = "draining";
  await waitForNothing(t);
  assert.deepEqual([sockets.length, phases], [1, ["connecting", "starting", "starting", "lost", "connecting", "open"]]);
});

test("what a server says of itself is not told when meanwhile a message has come, or the connection is lost", async (t) => {
  for (const happens of ["message", "close"]) {
    const { sockets, phases } = open(t, { health: "loading" });
    sockets[0].onopen();
    t.mock.timers.tick(3000);
    if (happens === "message") sockets[0].onmessage({ data: new ArrayBuffer(0) });
    else sockets[0].onclose({ code: 4429 });
    await new Promise((resolve) => setImmediate(resolve));
    assert.deepEqual(phases, ["connecting", happens === "message" ? "open" : "crowded"]);
    t.mock.timers.reset();
  }
});

test("a view that is hidden while the server is asked is not connected", async (t) => {
  const { sockets, phases, hide } = open(t);
  const failing = fail(sockets[0]);
  hide(true);
  await failing;
  t.mock.timers.tick(60_000);
  assert.deepEqual([sockets.length, phases], [1, ["connecting"]]);
});

test("a message that cannot be read begins the connection anew", (t) => {
  t.mock.method(console, "warn", () => {});
  const onMessage = () => {
    throw new Error("a part is missing");
  };
  const { sockets } = open(t, { onMessage });
  sockets[0].onmessage({ data: new ArrayBuffer(0) });
  assert.ok(sockets[0].isClosed);
  t.mock.timers.tick(500);
  assert.equal(sockets.length, 2);
});
