import assert from "node:assert/strict";
import test from "node:test";
import { FIELDS, cleanSettings, formatField, parseField, toFields } from "../../../app/static/sampling/sampling.js";
import { LABELS } from "../../../app/static/sampling/labels.js";
import { HELP, complaint } from "../../../app/static/settings/help.js";

const field = (name) => FIELDS.find((each) => each.name === name);

/** What is said about a text, which must be wrong. */
function said(name, text) {
  assert.deepEqual(parseField(field(name), text), { isWrong: true });
  return complaint(field(name), text);
}

test("an empty input is no value", () => {
  for (const each of FIELDS) assert.deepEqual(parseField(each, "  "), each.kind === "lines" ? { value: ["  "] } : {});
});

test("numbers are checked, with the range in the message", () => {
  assert.deepEqual(parseField(field("temperature"), "0,7"), { value: 0.7 });
  assert.equal(said("temperature", "3"), "Temperature is “3”; enter a number from 0 to 2.");
  assert.match(said("top_k", "1.5"), /whole number/);
  assert.equal(said("seed", "x"), "Seed is “x”; enter a whole number.");
  assert.equal(said("max_tokens", "0"), "Max tokens is “0”; enter a whole number of at least 1.");
});

test("top-p 0, which leaves the most likely token alone, is allowed as by the server", () => {
  assert.deepEqual(parseField(field("top_p"), "0"), { value: 0 });
  assert.deepEqual(parseField(field("top_p"), "0.01"), { value: 0.01 });
  assert.deepEqual(parseField(field("min_p"), "0"), { value: 0 });
});

test("every field has a label and a help", () => {
  assert.deepEqual(Object.keys(LABELS), FIELDS.map(({ name }) => name));
  assert.deepEqual(Object.keys(HELP).sort(), FIELDS.map(({ name }) => name).sort());
});

test("stop strings are lines, as many and as long as the server allows", () => {
  assert.deepEqual(parseField(field("stop"), "a\n\nb "), { value: ["a", "b "] });
  assert.match(said("stop", "a\n".repeat(17)), /17 lines; at most 16/);
  assert.match(said("stop", "x".repeat(257)), /257 characters; at most 256/);
  assert.ok(said("stop", `x${"🙂".repeat(256)}`).isWellFormed(), "no character is cut");
});

test("a schema is an object and tools are a list, as JSON", () => {
  assert.deepEqual(parseField(field("json_schema"), '{"type": "object"}'), { value: '{"type": "object"}' });
  assert.deepEqual(parseField(field("tools"), '[{"type": "function"}]'), { value: '[{"type": "function"}]' });
  assert.match(said("json_schema", '{"type"'), /^JSON schema: this is not JSON yet\. .+\.$/);
  for (const text of ["[]", "null", "7", "true"]) assert.equal(said("json_schema", text), "JSON schema: enter an object, {…}.");
  for (const text of ["{}", "[7]", "[null]", "[[]]"]) assert.equal(said("tools", text), "Tools: enter a list of objects, [{…}].");
});

test("a schema and tools become the fields of the request", () => {
  const texts = { json_schema: ' {"type": "object"}', tools: '[{"type": "function", "function": {"name": "f"}}]' };
  assert.deepEqual(toFields({ ...texts, temperature: 0.5 }), {
    temperature: 0.5,
    response_format: { type: "json_schema", json_schema: { name: "answer", schema: { type: "object" } } },
    tools: [{ type: "function", function: { name: "f" } }],
  });
  assert.deepEqual(toFields({ json_schema: "{", tools: "{}" }), {});
});

test("unknown names and wrong values of imported settings are dropped", () => {
  assert.deepEqual(cleanSettings({ temperature: 9, top_p: 0.5, __proto__: { seed: 1 }, model: "x", stop: "a" }), {
    top_p: 0.5,
    seed: 1,
    stop: ["a"],
  });
  assert.deepEqual(cleanSettings({ reasoning_effort: "x", thinking: "maybe", top_p: -1 }), {});
  assert.deepEqual(cleanSettings({ reasoning_effort: "high", thinking: "on" }), { reasoning_effort: "high", thinking: "on" });
  assert.equal(formatField(["a", "b"]), "a\nb");
});
