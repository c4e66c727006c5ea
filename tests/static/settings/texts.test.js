import assert from "node:assert/strict";
import test from "node:test";
import { forgetWrong, keepWrong, textsOf } from "../../../app/static/settings/texts.js";
import { takeEdits } from "../../../app/static/store/edits.js";

const conversation = { id: "c", settings: { temperature: 0.2, stop: ["a", "b"], json_schema: "{}" } };

test("the fields have the settings as text, and nothing where there are none", () => {
  const { temperature, stop, json_schema, seed } = textsOf(conversation);
  assert.deepEqual([temperature, stop, json_schema, seed], ["0.2", "a\nb", "{}", ""]);
});

test("what is wrong in a field is there again until it is right, or all settings are replaced", () => {
  keepWrong("c", "json_schema", '{"type":');
  keepWrong("c", "seed", "x");
  assert.deepEqual([textsOf(conversation).json_schema, textsOf(conversation).seed], ['{"type":', "x"]);
  assert.equal(textsOf({ ...conversation, id: "other" }).seed, "");
  keepWrong("c", "seed", null);
  assert.deepEqual([textsOf(conversation).json_schema, textsOf(conversation).seed], ['{"type":', ""]);
  forgetWrong("c");
  assert.equal(textsOf(conversation).json_schema, "{}");
});

test("what is wrong in a field goes with its conversation", () => {
  keepWrong("c", "seed", "x");
  assert.equal(takeEdits(["c"]).size, 1);
  assert.equal(textsOf(conversation).seed, "");
});
