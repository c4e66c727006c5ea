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
  assert.equal(press("k"), null);
});

test("the list of shortcuts opens also where / needs Shift", () => {
  assert.equal(press("/", "ctrlKey", "shiftKey"), "help");
});
