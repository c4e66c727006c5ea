import assert from "node:assert/strict";
import test from "node:test";
import { made, typeset } from "../../../app/static/reading/maths.js";

const see = (source) => typeset(/** @type {any} */ ({ textContent: source, replaceWith: () => assert.fail(source) }));

test("a formula that is wrong is parsed once", () => {
  made.clear();
  see("$\\unknown$");
  assert.deepEqual([...made], [["$\\unknown$", null]]);
});

test("the sources of an open formula, one longer than the other, are not kept, nor are very long ones", () => {
  made.clear();
  for (let length = 0; length < 2000; length += 1) see(`$$\n${"x".repeat(length)}`);
  for (let length = 0; length < 2000; length += 1) see(`\\[${"x".repeat(length)}`);
  see(`$$${"x".repeat(5000)}$$`);
  assert.equal(made.size, 0);
});
