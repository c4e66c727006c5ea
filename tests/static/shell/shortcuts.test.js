import assert from "node:assert/strict";
import test from "node:test";
import { actionOf } from "../../../app/static/shell/shortcuts.js";

const press = (key, ...modifiers) => actionOf({ key, ...Object.fromEntries(modifiers.map((name) => [name, true])) });

test("shortcuts are the same with Ctrl and with Cmd, and need no other key", () => {
  for (const modifier of ["ctrlKey", "metaKey"]) {
    assert.equal(press("k", modifier), "search");
    assert.equal(press("B", modifier), "toggleList");
    assert.equal(press("/", modifier), "help");
    assert.equal(press("O", modifier, "shiftKey"), "startNew");
    assert.equal(press("K", modifier, "shiftKey"), null);
    assert.equal(press("o", modifier), null);
  }
  assert.equal(press("Escape"), "stop");
});

test("the list of shortcuts opens also where / needs Shift", () => {
  assert.equal(press("/", "ctrlKey", "shiftKey"), "help");
});

test("what writes or pastes goes to the composer, and no other key does", () => {
  for (const key of ["k", "K", "ß", "語", "😀", "/", "5"]) assert.equal(press(key), "type", key);
  assert.equal(press("v", "ctrlKey"), "type");
  assert.equal(press("v", "metaKey"), "type");
  for (const key of [" ", "Tab", "Enter", "ArrowUp", "F5", "Dead", "Backspace"]) assert.equal(press(key), null, key);
  assert.equal(press("c", "ctrlKey"), null);
  assert.equal(press("f", "altKey"), null);
});

test("a character that is typed with AltGr is no shortcut", () => {
  const altGr = { ctrlKey: true, altKey: true, getModifierState: (name) => name === "AltGraph" };
  assert.equal(actionOf({ key: "@", ...altGr }), "type");
  assert.equal(actionOf({ key: "k", ...altGr }), "type");
});

test("a field keeps what is typed into it", () => {
  const inside = (selector) => ({ closest: (selectors) => (selectors.includes(selector) ? {} : null) });
  assert.equal(actionOf({ key: "k", target: inside("textarea") }), null);
  assert.equal(actionOf({ key: "v", ctrlKey: true, target: inside("select") }), null);
  assert.equal(actionOf({ key: "k", ctrlKey: true, target: inside("textarea") }), "search");
  assert.equal(actionOf({ key: "k", target: inside("button") }), "type");
});
