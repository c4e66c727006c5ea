import assert from "node:assert/strict";
import test from "node:test";
import { Channel } from "../../../app/static/store/channel.js";

/** Tabs that write what `held` says. */
function open(t, ...held) {
  const tabs = held.map((ids) => new Channel({
    onSaved: () => {}, onRemoved: () => {}, onImported: () => {}, holds: (id) => ids.includes(id),
  }));
  t.after(() => tabs.forEach((tab) => tab.close()));
  return tabs;
}

test("a tab that writes an answer says so", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const [asking] = open(t, [], ["a"]);
  assert.equal(await asking.isHeldElsewhere("a"), true);
  const isHeld = asking.isHeldElsewhere("b");
  t.mock.timers.tick(300);
  assert.equal(await isHeld, false);
});

test("of tabs that ask at the same time one takes over, and the others hear that it does", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const tabs = open(t, [], [], []);
  const [first, ...others] = tabs.map((tab) => tab.isHeldElsewhere("a"));
  assert.deepEqual(await Promise.all(others), [true, true]);
  t.mock.timers.tick(300);
  assert.equal(await first, false);
  assert.equal(await tabs[2].isHeldElsewhere("a"), true, "it has just been taken over");
});

test("a busy tab may answer late where that matters", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const [asking] = open(t, []);
  const busy = new BroadcastChannel("quire");
  t.after(() => busy.close());
  const asked = new Promise((resolve) => {
    busy.onmessage = ({ data }) => resolve(data);
  });
  const isHeld = asking.isHeldElsewhere("a", 2000);
  const { message, tab } = /** @type {any} */ (await asked);
  t.mock.timers.tick(1999);
  busy.postMessage({ kind: "mine", message, to: tab });
  assert.equal(await isHeld, true);
});
