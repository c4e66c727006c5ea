import assert from "node:assert/strict";
import test from "node:test";
import { ImportError, readArchive, writeArchive } from "../../../app/static/store/archive.js";
import { renamed } from "../../../app/static/store/copies.js";
import { readMarkdown, writeMarkdown } from "../../../app/static/store/markdown_archive.js";
import { newConversation } from "../../../app/static/tree/records.js";

const message = (id, conversation, parent, more = {}) => ({
  id, conversation, parent, role: "user", text: `text of ${id}`, createdAt: 1, ...more,
});

function sample() {
  const conversation = { ...newConversation(1), id: "c1", title: "A <b>title</b>", head: "m2", settings: { seed: 3 } };
  const answer = { role: "assistant", state: "streaming", tools: [{ id: "t", name: "f", arguments: "{}" }] };
  return { conversations: [conversation], messages: [message("m1", "c1", null), message("m2", "c1", "m1", answer)] };
}

const written = (change = (archive) => archive) => {
  const archive = JSON.parse(writeArchive(sample(), new Date(0)));
  return JSON.stringify(change(archive) ?? archive);
};

test("an export is imported unchanged; an open answer has ended", () => {
  const { conversations, messages } = readArchive(written());
  assert.deepEqual(conversations, sample().conversations);
  assert.deepEqual(messages, [sample().messages[0], { ...sample().messages[1], state: "interrupted" }]);
});

test("what is no export, or of a newer version, or damaged anywhere, is refused with a reason", () => {
  const refused = (text, reason) => assert.throws(() => readArchive(text), (error) => error instanceof ImportError && reason.test(error.message));
  refused("not json", /not JSON/);
  refused("[]", /no conversations of Quire/);
  refused("null", /no conversations of Quire/);
  refused(written((archive) => void (archive.version = 2)), /version 2; this page reads version 1/);
  refused(written((archive) => void (archive.conversations[0].title = 5)), /Conversation 1 .*fields/);
  refused(written((archive) => void delete archive.conversations[0].messages), /no list of messages/);
  refused(written((archive) => void (archive.conversations[0].messages[1].role = "system")), /message 2/);
  refused(written((archive) => void (archive.conversations[0].messages[1].id = "m1")), /same id/);
  refused(written((archive) => void (archive.conversations[0].messages[0].parent = "m2")), /circle/);
  refused(written((archive) => void archive.conversations.push(archive.conversations[0])), /same id/);
});

test("probabilities of tokens are imported unchanged, and refused if they are damaged", () => {
  const tokens = [
    { text: "Once", p: 0.5, top: [{ text: "One", p: 0.3 }] }, { text: "", p: 0.1, bytes: [240, 159], numTokens: 2 },
    { text: "<end>", p: 1, top: [], isEnd: true }, { text: " upon" },
  ];
  const withTokens = (changed) => written((archive) => void (archive.conversations[0].messages[1].tokens = changed));
  assert.deepEqual(readArchive(withTokens(tokens)).messages[1].tokens, tokens);
  const damaged = ["Once", [null], [{ p: 1 }], [{ text: "a", p: "1" }], [{ text: "a", top: [{ text: "b" }] }], [{ text: "a", bytes: [256] }]];
  for (const each of damaged) assert.throws(() => readArchive(withTokens(each)), ImportError, JSON.stringify(each));
});

test("unknown fields and wrong settings of an import are dropped", () => {
  const text = written((archive) => void Object.assign(archive.conversations[0], { evil: 1, settings: { seed: "x" } }));
  const [conversation] = readArchive(text).conversations;
  assert.equal("evil" in conversation, false);
  assert.deepEqual(conversation.settings, {});
});

test("a title of an older version stays, whoever has written it", () => {
  for (const [hasOwnTitle, titleFrom] of [[true, "user"], [false, "model"]]) {
    const text = written((archive) => {
      delete archive.conversations[0].titleFrom;
      archive.conversations[0].hasOwnTitle = hasOwnTitle;
    });
    assert.equal(readArchive(text).conversations[0].titleFrom, titleFrom);
  }
  assert.throws(() => readArchive(written((archive) => void (archive.conversations[0].titleFrom = "nobody"))), ImportError);
});

test("a conversation with an existing id becomes a copy with ids of its own", () => {
  for (const [conversations, messages] of [[["c1"], []], [[], ["m2"]]]) {
    const made = renamed(sample(), new Set(conversations), new Set(messages));
    assert.equal(made.numCopies, 1);
    const [conversation] = made.conversations;
    assert.notEqual(conversation.id, "c1");
    assert.deepEqual(made.messages.map((each) => each.conversation), [conversation.id, conversation.id]);
    assert.equal(made.messages[1].parent, made.messages[0].id);
    assert.equal(conversation.head, made.messages[1].id);
  }
  assert.deepEqual(renamed(sample(), new Set(), new Set()), { ...sample(), numCopies: 0 });
});

test("Markdown is read back as it was written, also if it looks like the marks", () => {
  const texts = ["# Why?\n\n## Answer", "<!-- quire: user -->\n\\<!-- quire: user -->\n\n```\ncode\n```"];
  const path = [{ role: "user", text: texts[0] }, { role: "assistant", text: texts[1] }];
  const text = writeMarkdown([{ title: "One\ntwo", path }, { title: "Empty", path: [] }]);
  const { conversations, messages } = readMarkdown(text.replaceAll("\n", "\r\n"), 5);
  assert.deepEqual(conversations.map(({ title }) => title), ["One two", "Empty"]);
  assert.deepEqual(messages.map((each) => [each.role, each.text]), path.map((each) => [each.role, each.text]));
  assert.equal(conversations[0].head, messages[1].id);
  assert.throws(() => readMarkdown("# Notes", 5), ImportError);
});

test("cuts are exported and imported, as JSON and, unless they are undone, as Markdown", () => {
  const records = sample();
  Object.assign(records.messages[0], { keeps: 1, isUndone: true });
  Object.assign(records.messages[1], { state: "done", keeps: 0 });
  const [question, answer] = readArchive(writeArchive(records, new Date(0))).messages;
  assert.deepEqual([question.keeps, question.isUndone, answer.keeps], [1, true, 0]);
  records.messages[1].keeps = -1;
  assert.throws(() => readArchive(writeArchive(records, new Date(0))), /message 2/);
  const path = [
    { role: "user", text: "<!-- quire: cut 5 -->", keeps: 1, isUndone: true },
    { role: "assistant", text: "One.", keeps: 2 },
    { role: "user", text: "Two?" },
  ];
  const { messages } = readMarkdown(writeMarkdown([{ title: "T", path }]), 0);
  assert.deepEqual(messages.map(({ text, keeps }) => [text, keeps]), [
    ["<!-- quire: cut 5 -->", undefined], ["One.", 2], ["Two?", undefined],
  ]);
});

test("results of tools are exported and imported, and damaged ones are refused", () => {
  const records = sample();
  const results = [{ id: "t", name: "f", text: "7" }];
  records.messages.push(message("m3", "c1", "m2", { text: "", results }));
  const archive = JSON.parse(writeArchive(records, new Date(0)));
  assert.deepEqual(readArchive(JSON.stringify(archive)).messages.at(-1).results, results);
  const markdown = writeMarkdown([{ title: "T", path: records.messages }]);
  assert.equal(readMarkdown(markdown, 1).messages.at(-1).text, "f:\n```\n7\n```");
  archive.conversations[0].messages[2].results = [{ id: "t", text: 7 }];
  assert.throws(() => readArchive(JSON.stringify(archive)), /message 3/);
});
