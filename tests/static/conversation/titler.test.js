import assert from "node:assert/strict";
import test, { beforeEach } from "node:test";
import { Titler, cleanTitle, wantTitles } from "../../../app/static/conversation/titler.js";
import { newConversation } from "../../../app/static/tree/records.js";
import { FakeLibrary } from "./fake_library.js";

let library;
let link;
let started;
let cancelled;
let titler;

beforeEach(() => {
  started = [];
  cancelled = [];
  library = new FakeLibrary();
  library.update = (id, fields) => library.save({ ...library.get(id), ...fields });
  link = {
    isReady: true, answersAnything: true, details: {},
    start: (id, request) => {
      started.push({ id, request, isOver: false });
      return started.at(-1);
    },
    cancel: (id) => cancelled.push(id),
  };
  titler = new Titler(link, library);
  wantTitles(true);
});

/** A conversation with one complete answer, whose title is the beginning of its question. */
function answered(fields = {}, answer = {}) {
  const record = { ...newConversation(1), title: "How is bread made?", ...fields };
  library.save(record);
  const messages = [
    { role: "user", text: "How is bread made?" },
    { role: "assistant", text: "With yeast.", state: "done", ...answer },
    { role: "user", text: "And then?" },
  ];
  return { id: record.id, messages, settings: { system: "Be brief.", temperature: 2, stop: ["x"] } };
}

function end(stream, reason = "stop") {
  titler.receive(stream, { t: "finish", finish_reason: reason });
  stream.isOver = true;
  titler.receive(stream, { t: "done" });
}

test("a title is asked for with the lowest priority, few tokens, and the beginning that the cache has", () => {
  titler.ask(answered());
  const { messages, max_tokens, priority, temperature, stop } = started[0].request;
  assert.deepEqual([max_tokens, priority, temperature, stop], [16, 100, 0, ["\n"]]);
  assert.deepEqual(messages.slice(0, 3).map(({ content }) => content), ["Be brief.", "How is bread made?", "With yeast."]);
  assert.deepEqual(messages.map(({ role }) => role), ["system", "user", "assistant", "user"]);
});

test("of long messages the beginnings are sent", () => {
  const conversation = answered({}, { text: "word ".repeat(1000) });
  conversation.messages[0].files = [{ name: "large.txt", text: "line\n".repeat(10_000) }];
  titler.ask(conversation);
  const [, question, answer] = started[0].request.messages.map(({ content }) => content);
  assert.match(question, /^large.txt:\n```\nline\n/);
  assert.deepEqual([question.length, answer.length], [2000, 2000]);
});

test("a model that reasons is asked not to", () => {
  link.details = { capabilities: { reasoning: true } };
  titler.ask(answered());
  assert.deepEqual(started[0].request.chat_template_kwargs, { enable_thinking: false });
});

test("what the model writes becomes the title, and stays the page's", () => {
  const conversation = answered();
  titler.ask(conversation);
  titler.receive(started[0], { t: "delta", x: '"Baking ' });
  titler.receive({ isOver: false }, { t: "delta", x: "of another stream" });
  titler.receive(started[0], { t: "delta", x: 'Bread."' });
  end(started[0]);
  assert.equal(library.get(conversation.id).title, "Baking Bread");
  assert.equal(library.get(conversation.id).titleFrom, "model");
});

test("no title is asked for where none is wanted, or none can be had", () => {
  titler.ask(answered({ titleFrom: "user" }));
  titler.ask(answered({ titleFrom: "model" }));
  titler.ask(answered({}, { state: "streaming" }));
  titler.ask(answered({}, { text: "" }));
  titler.ask({ ...answered(), id: "deleted" });
  link.answersAnything = false;
  titler.ask(answered());
  Object.assign(link, { answersAnything: true, isReady: false });
  titler.ask(answered());
  link.isReady = true;
  wantTitles(false);
  titler.ask(answered());
  assert.deepEqual(started, []);
});

test("each conversation is asked about once, and one at a time", () => {
  const conversation = answered();
  titler.ask(conversation);
  titler.ask(answered());
  assert.equal(started.length, 1);
  end(started[0]);
  titler.ask(conversation);
  assert.equal(started.length, 1);
});

test("a title that does not end, that is empty or long, that announces one, or that fails, is none", () => {
  const announced = "Here's a possible title for the conversation:";
  const texts = ["", "**", "x".repeat(61), announced, `**${announced}**`];
  for (const [text, reason] of [["Half a", "length"], ...texts.map((each) => [each, "stop"])]) {
    const conversation = answered();
    titler.ask(conversation);
    titler.receive(started.at(-1), { t: "delta", x: text });
    end(started.at(-1), reason);
    assert.equal(library.get(conversation.id).title, "How is bread made?", text);
  }
  titler.ask(answered());
  started.at(-1).isOver = true;
  titler.receive(started.at(-1), { t: "error", code: "context_length_exceeded" });
  titler.ask(answered());
  assert.equal(started.length, 8);
});

test("a title that the user has given meanwhile stays", () => {
  const conversation = answered();
  titler.ask(conversation);
  library.update(conversation.id, { title: "Mine", titleFrom: "user" });
  titler.receive(started[0], { t: "delta", x: "Bread" });
  end(started[0]);
  assert.equal(library.get(conversation.id).title, "Mine");
});

test("a title that was stopped is asked for again after the next answer", () => {
  const conversation = answered();
  titler.ask(conversation);
  titler.stop();
  titler.stop();
  assert.deepEqual(cancelled, [started[0].id]);
  titler.receive(started[0], { t: "delta", x: "Late" });
  titler.ask(conversation);
  assert.equal(started.length, 2);
});

test("the title of a turn with calls is made of its question and its last answer", () => {
  const conversation = answered({}, { text: "", tools: [{ id: "a", name: "look", arguments: "{}" }] });
  titler.ask(conversation);
  assert.deepEqual(started, []);
  const results = [{ id: "a", name: "look", text: "yeast" }];
  conversation.messages.splice(2, 0, { role: "user", text: "", results }, { role: "assistant", text: "With yeast.", state: "done" });
  titler.ask(conversation);
  const contents = started[0].request.messages.map(({ content }) => content);
  assert.deepEqual(contents.slice(1, 3), ["How is bread made?", "With yeast."]);
  assert.equal(contents.length, 4);
});

test("what models put around a title is not part of it", () => {
  for (const [text, title] of [
    ["**Title:** Baking Bread", "Baking Bread"], ["# Baking  Bread\nIt is", "Baking Bread"], ["„Brot backen“", "Brot backen"],
    [" 'Why bread?' ", "Why bread?"], ["Title case: a guide", "Title case: a guide"], ["Paris: City of Light", "Paris: City of Light"],
    [`Here's a possible title: "Age of Anna: 34`, "Age of Anna: 34"], ["Sure! **Title**: “Baking Bread”", "Baking Bread"],
    ["Here is a title for this conversation: Baking Bread", "Baking Bread"], ["Titelvorschlag: „Brot backen“", "Brot backen"], ["パンの作り方。", "パンの作り方。"],
  ]) assert.equal(cleanTitle(text), title);
});
