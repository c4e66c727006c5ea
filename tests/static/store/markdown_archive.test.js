import assert from "node:assert/strict";
import test from "node:test";
import { readMarkdown, writeMarkdown } from "../../../app/static/store/markdown_archive.js";

test("files stand before the question that they were attached to, as they were sent", () => {
  const files = [{ name: "notes.txt", text: "first line\n" }];
  const path = [
    { role: "user", text: "Why?", files },
    { role: "assistant", text: "So.", state: "done" },
  ];
  const text = writeMarkdown([{ title: "Notes", path }]);
  assert.ok(text.includes("## Question\n\nnotes.txt:\n```\nfirst line\n```\n\nWhy?\n"), text);
  const { messages } = readMarkdown(text, 0);
  assert.deepEqual(messages.map((message) => message.text), ["notes.txt:\n```\nfirst line\n```\n\nWhy?", "So."]);
});
