import assert from "node:assert/strict";
import test from "node:test";
import { makeSnippet } from "../../../app/static/server/snippets.js";

const ORIGIN = "http://localhost:8000";

test("arguments of OpenAI's client are arguments, and other fields are in its body", () => {
  const body = { model: "m", messages: [], tools: [{ strict: true }], response_format: { type: "json_object" }, min_p: 0.1, think: null };
  const snippet = makeSnippet("Python", ORIGIN, body);
  assert.match(snippet, /\n {4}tools=\[\{"strict": True\}\],\n {4}response_format=\{"type": "json_object"\},\n/);
  assert.match(snippet, /\n {4}extra_body=\{"min_p": 0\.1, "think": None\},\n/);
});

test("a quote does not end the body of curl", () => {
  assert.match(makeSnippet("curl", ORIGIN, { model: "it's" }), /"model": "it'\\''s"/);
});

test("a body in JavaScript is JSON", () => {
  assert.match(makeSnippet("JavaScript", ORIGIN, { model: "m" }), /body: JSON\.stringify\(\{\n {4}"model": "m"\n {2}\}\),/);
});

test("an API key is read from the environment, and none is asked for where there is none", () => {
  for (const [language, reads] of [
    ["curl", '\\\n  -H "Authorization: Bearer $QUIRE_API_KEY" \\\n'],
    ["Python", 'import os\n\nfrom openai import OpenAI\n\nclient = OpenAI(base_url="http://localhost:8000/v1", api_key=os.environ["QUIRE_API_KEY"])'],
    ["JavaScript", '"application/json", Authorization: `Bearer ${process.env.QUIRE_API_KEY}` },'],
  ]) {
    assert.ok(makeSnippet(language, ORIGIN, { model: "m" }, true).includes(reads), language);
    assert.doesNotMatch(makeSnippet(language, ORIGIN, { model: "m" }), /QUIRE_API_KEY|Authorization|import os/);
  }
});
