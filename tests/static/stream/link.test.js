import assert from "node:assert/strict";
import test from "node:test";
import { Link } from "../../../app/static/stream/link.js";

/** A socket that is closed with a code before its welcome. */
const closing = (code) =>
  class {
    static OPEN = 1;
    /** @type {any} */
    onclose;

    constructor() {
      setTimeout(() => this.onclose({ code }));
    }

    close() {}
  };

function prepare(t, WebSocket, fetch) {
  t.mock.method(Math, "random", () => 0);
  t.mock.method(globalThis, "setInterval", () => 0); // heartbeats of a page that nobody closes
  const fakes = { WebSocket, fetch, location: { href: "http://localhost/" }, addEventListener: () => {} };
  for (const [name, value] of Object.entries(fakes)) Object.defineProperty(globalThis, name, { value, configurable: true, writable: true });
}

const answers = (body) => ({ ok: true, status: 200, json: async () => body });
const serve = async (address) =>
  answers(address === "/readyz" ? { status: "ready" } : { data: [{ id: "guide" }] });

/** The phases of a page whose sockets close with a code, until it is ready. */
async function phasesUntilReady(t, code) {
  prepare(t, closing(code), serve);
  const phases = [];
  await new Promise((resolve) => {
    const link = new Link({
      onPhase: () => {
        phases.push(link.phase.name);
        if (link.isReady) resolve();
      },
      onFrame: () => {},
      onLost: () => {},
    });
    link.run();
  });
  return phases;
}

test("HTTP is used where a proxy refuses WebSockets", async (t) => {
  assert.deepEqual(await phasesUntilReady(t, 1006), ["offline", "offline", "ready"]);
});

test("HTTP is used where a proxy swallows the frames of WebSockets, so that the server gets no hello", async (t) => {
  assert.deepEqual(await phasesUntilReady(t, 4408), ["offline", "offline", "ready"]);
});

test("a page that connects for long says so", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  prepare(t, closing(1006), () => new Promise(() => {}));
  const phases = [];
  const link = new Link({ onPhase: () => phases.push(link.phase), onFrame: () => {}, onLost: () => {} });
  link.run();
  t.mock.timers.tick(1999);
  assert.deepEqual(phases, []);
  t.mock.timers.tick(1);
  assert.deepEqual(phases, [{ name: "connecting", isSlow: true }]);
});

test("a request that gets no answer is given up, and tried again", async (t) => {
  const limits = [];
  t.mock.method(AbortSignal, "timeout", (ms) => {
    limits.push(ms);
    return AbortSignal.abort();
  });
  // The network is gone: a request ends only when its signal ends it.
  prepare(t, closing(1006), async (_address, { signal }) => {
    if (signal.aborted) throw signal.reason;
    return new Promise(() => {});
  });
  const phases = [];
  await new Promise((resolve) => {
    const onPhase = () => {
      if (phases.push(link.phase.name) < 3) return;
      link.phase = { name: "stale" }; // the page is closed
      resolve(undefined);
    };
    const link = new Link({ onPhase, onFrame: () => {}, onLost: () => {} });
    link.run();
  });
  assert.deepEqual(phases, ["offline", "offline", "offline"]);
  assert.deepEqual(limits.slice(0, 3), [10_000, 10_000, 10_000]);
});

/** A server that is killed when it has done `lifetime` things for the page; none of its connections outlives it. */
class MortalServer {
  /** @type {Set<any>} */
  sockets = new Set();
  numDone = 0;

  constructor(lifetime) {
    this.lifetime = lifetime;
    const server = this;
    this.WebSocket = class {
      static OPEN = 1;
      readyState = 0;
      /** @type {any} */
      onopen;
      /** @type {any} */
      onmessage;
      /** @type {any} */
      onclose;

      constructor() {
        server.sockets.add(this);
        setTimeout(() => {
          if (!server.does()) return this.onclose({ code: 1006 });
          this.readyState = 1;
          this.onopen();
        });
      }

      send(text) {
        const frame = JSON.parse(text);
        if (frame.t === "hello" && server.does()) this.tell({ t: "welcome", limits: {}, heartbeat_ms: 15_000 });
        if (frame.t !== "start") return;
        for (let n = 1; n <= 3; n += 1) if (server.does()) this.tell({ t: "delta", id: frame.id, i: 0, n, k: 1, x: "a" });
      }

      tell(frame) {
        setTimeout(() => this.readyState === 1 && this.onmessage?.({ data: JSON.stringify(frame) }));
      }

      close() {}
    };
  }

  /** Whether it lived to do one thing more. */
  does() {
    this.numDone += 1;
    if (this.numDone === this.lifetime) {
      for (const socket of this.sockets) {
        socket.readyState = 3;
        setTimeout(() => socket.onclose({ code: 1006 }));
      }
    }
    return this.numDone < this.lifetime;
  }

  async fetch(address) {
    if (!this.does()) throw new TypeError("refused");
    return serve(address);
  }
}

test("wherever a server dies, also in mid-answer, the page says that it cannot be reached, and goes on saying it", async (t) => {
  for (let lifetime = 1; lifetime <= 10; lifetime += 1) {
    const server = new MortalServer(lifetime);
    prepare(t, server.WebSocket, (address) => server.fetch(address));
    Object.defineProperty(globalThis, "document", { value: { hidden: false }, configurable: true });
    const phases = [];
    await new Promise((resolve) => {
      const link = new Link({
        onPhase: () => {
          phases.push(link.phase.name);
          if (link.isReady) link.start("a", { messages: [] });
          if (phases.slice(-4).join() !== "offline,offline,offline,offline") return;
          link.phase = { name: "stale" }; // the page is closed
          resolve(undefined);
        },
        onFrame: () => server.does(),
        onLost: () => {},
      });
      link.run();
    });
    const wasReady = phases.indexOf("ready") >= 0;
    assert.equal(wasReady, lifetime > 4, `${lifetime}: ${phases}`);
    assert.deepEqual(phases.slice(wasReady ? 1 : 0), ["offline", "offline", "offline", "offline"]);
    t.mock.restoreAll();
  }
});
