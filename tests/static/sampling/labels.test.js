import assert from "node:assert/strict";
import test from "node:test";
import { withLabels } from "../../../app/static/sampling/labels.js";

test("a message of the server names settings as the page does", () => {
  for (const [message, shown] of [
    ["response_format.json_schema.schema is rejected: x.", "“JSON schema” is rejected: x."],
    ["12 tokens of the prompt and max_tokens 5000 exceed it; lower max_tokens.",
      "12 tokens of the prompt and “Max tokens” 5000 exceed it; lower “Max tokens”."],
    ["tools[0].function.name is 3; it must be a text.", "“Tools”[0].function.name is 3; it must be a text."],
    ["n is 4; this server allows 2.", "“Answers at once” is 4; this server allows 2."],
  ]) assert.equal(withLabels(message), shown);
});

test("words that are no names of settings stay as they are", () => {
  for (const message of ["The tools stop.", "stopped", "default_max_tokens", "max_tokens_left", "messages[0].tools is 3."]) {
    assert.equal(withLabels(message), message);
  }
});
