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

function open(t, { key = null, hidden = false, onMessage = () => {} } = {}) {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const page = Object.assign(new EventTarget(), { hidden });
  const fakes = { WebSocket: FakeSocket, location: { href: "https://quire.example/#1" }, document: page };
  for (const [name, value] of Object.entries(fakes)) Object.defineProperty(globalThis, name, { value, configurable: true });
  FakeSocket.made = [];
  const phases = [];
  const feed = new Feed(key, { onMessage, onPhase: (phase) => phases.push(phase) });
  const hide = (now) => {
    page.hidden = now;
    page.dispatchEvent(new Event("visibilitychange"));
  };
  return { feed, phases, hide, sockets: FakeSocket.made };
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

test("a lost connection is tried again, later and later, until the view is closed", (t) => {
  const { sockets, phases, feed } = open(t);
  sockets[0].onclose({ code: 1006 });
  t.mock.timers.tick(500);
  assert.deepEqual([sockets.length, phases], [2, ["connecting", "lost", "connecting"]]);
  sockets[1].onclose({ code: 1006 });
  t.mock.timers.tick(499);
  assert.equal(sockets.length, 2);
  t.mock.timers.tick(501);
  assert.equal(sockets.length, 3);
  sockets[2].onclose({ code: 1006 });
  feed.close();
  t.mock.timers.tick(60_000);
  assert.equal(sockets.length, 3);
});

test("a refused view is not tried again", (t) => {
  const { sockets, phases } = open(t);
  sockets[0].onclose({ code: 4401 });
  t.mock.timers.tick(60_000);
  assert.deepEqual([sockets.length, phases.at(-1)], [1, "refused"]);
});

test("the page is told that the server shows nothing, or that too many watch", (t) => {
  const { sockets, phases } = open(t);
  sockets[0].onclose({ code: 1006 });
  t.mock.timers.tick(500);
  sockets[1].onclose({ code: 1006 });
  t.mock.timers.tick(1000);
  sockets[2].onopen();
  sockets[2].onclose({ code: 4429 });
  t.mock.timers.tick(2000);
  sockets[3].onclose({ code: 1006 });
  assert.deepEqual(phases.filter((phase) => phase !== "connecting"), ["lost", "hidden", "crowded", "lost"]);
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
