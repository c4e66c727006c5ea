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
