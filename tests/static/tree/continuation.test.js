import assert from "node:assert/strict";
import test from "node:test";
import { obstacleOf } from "../../../app/static/tree/continuation.js";

test("only text without a schema can be continued", () => {
  assert.equal(obstacleOf({ text: "Once" }, { tools: "[]", temperature: 1 }), "");
  assert.match(obstacleOf({ text: "Once", tools: [{}] }, {}), /^Calls of tools cannot be continued/);
  assert.match(obstacleOf({ text: "{" }, { json_schema: "{}" }), /^JSON of a schema cannot be continued/);
});
