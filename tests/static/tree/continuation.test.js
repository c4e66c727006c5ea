import assert from "node:assert/strict";
import test from "node:test";
import { obstacleOf } from "../../../app/static/tree/continuation.js";

test("only text without a schema can be continued", () => {
  assert.equal(obstacleOf({ text: "Once" }, { tools: "[]", temperature: 1 }, "m"), "");
  assert.match(obstacleOf({ text: "Once", tools: [{}] }, {}, "m"), /^Calls of tools cannot be continued/);
  assert.match(obstacleOf({ text: "{" }, { json_schema: "{}" }, "m"), /^JSON of a schema cannot be continued/);
});

test("only the model that has begun an answer continues it, where both are known", () => {
  assert.match(obstacleOf({ text: "Once", model: "one" }, {}, "other"), /^one wrote this, and the server runs other now;/);
  for (const [model, served] of [["one", "one"], [undefined, "other"], ["one", null]]) {
    assert.equal(obstacleOf({ text: "Once", model }, {}, served), "");
  }
});
