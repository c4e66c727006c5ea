import assert from "node:assert/strict";
import test from "node:test";
import { isCut } from "../../../app/static/tree/answer.js";
import { Tree } from "../../../app/static/tree/tree.js";
import { ask, askDraft, begin, library, refuse, reopened, reply, texts } from "./conversations.js";

test("an answer that repeated itself says so after a reload, and can go on", () => {
  for (const [finish_reason, stop_reason, finish, goesOn] of [
    ["length", "repetition", "repetition", true],
    ["length", undefined, "length", true],
    ["stop", "repetition", "stop", false], // a stop string of this text
    ["stop", undefined, "stop", false],
  ]) {
    const conversation = begin();
    conversation.ask("Again?");
    const { stream } = conversation.open;
    conversation.receive(stream, { t: "delta", k: 1, x: "no no" });
    conversation.receive(stream, { t: "finish", finish_reason, stop_reason });
    conversation.receive(stream, { t: "done" });
    const answer = reopened(conversation).messages.at(-1);
    assert.deepEqual([answer.finish, isCut(answer)], [finish, goesOn]);
  }
});

/** Each stored message but the first of a branch has its parent. */
function assertWhole({ id }) {
  const stored = library.messages(id);
  for (const { parent, text } of stored) assert.ok(parent === null || stored.some((each) => each.id === parent), text);
}

test("a message of another branch is revealed at the end of the newest branch with it", () => {
  const conversation = begin();
  ask(conversation, "One?", "First.");
  const [, first] = conversation.messages;
  ask(conversation, "Two?", "Second.");
  conversation.regenerate(first);
  reply(conversation, "Again.");
  conversation.edit(first.id);
  conversation.reveal("nowhere");
  conversation.reveal(conversation.messages[0].id);
  assert.deepEqual(texts(conversation), ["One?", "Again."], "it is shown already");
  conversation.reveal(first.id);
  assert.deepEqual(texts(conversation), ["One?", "First.", "Two?", "Second."]);
  assert.equal(conversation.editing, null);
  assert.deepEqual(texts(reopened(conversation)), texts(conversation));
});

test("a question whose repeated answer was refused keeps its first answer when it is asked again", () => {
  const conversation = begin();
  ask(conversation, "One?", "First.");
  ask(conversation, "Two?", "Second.");
  conversation.regenerate(conversation.messages.at(-1));
  refuse(conversation);
  assert.equal(conversation.draft.text, "Two?");
  askDraft(conversation);
  reply(conversation, "Again.");
  assert.deepEqual(texts(conversation), ["One?", "First.", "Two?", "Again."]);
  assert.deepEqual(conversation.branches(conversation.messages[2]), { number: 2, count: 2 });
  assertWhole(conversation);
  const later = reopened(conversation);
  assert.deepEqual(texts(later), ["One?", "First.", "Two?", "Again."]);
  later.switchBranch(later.messages[2], -1);
  assert.deepEqual(texts(later), ["One?", "First.", "Two?", "Second."]);
});

test("a refused repetition in the middle of a conversation leaves all later turns", () => {
  const conversation = begin();
  for (const number of ["1", "2", "3"]) ask(conversation, `${number}?`, `${number}.`);
  conversation.regenerate(conversation.messages[1]);
  refuse(conversation);
  askDraft(conversation);
  reply(conversation, "Again.");
  const later = reopened(conversation);
  assert.deepEqual(texts(later), ["1?", "Again."]);
  later.switchBranch(later.messages[0], -1);
  assert.deepEqual(texts(later), ["1?", "1.", "2?", "2.", "3?", "3."]);
  assertWhole(conversation);
});

test("a question that hangs on a failed answer stays in its branch when the failed one is edited", () => {
  const conversation = begin();
  ask(conversation, "One?", "First.");
  conversation.ask("Two?");
  conversation.draft.write("A new thought");
  refuse(conversation);
  const failed = conversation.messages.at(-1);
  askDraft(conversation);
  reply(conversation, "Indeed.");
  conversation.takeBack(failed);
  conversation.draft.write("Two, shorter?");
  askDraft(conversation);
  reply(conversation, "Second.");
  const expected = ["One?", "First.", "A new thought", "Indeed.", "Two, shorter?", "Second."];
  assert.deepEqual(texts(conversation), expected);
  assertWhole(conversation);
  assert.deepEqual(texts(reopened(conversation)), expected);
});

test("an empty answer with a later question stays when it is answered again", () => {
  const conversation = begin();
  conversation.ask("One?");
  conversation.stop();
  const empty = conversation.messages.at(-1);
  ask(conversation, "Two?", "Second.");
  conversation.regenerate(empty);
  reply(conversation, "First.");
  assert.deepEqual(texts(conversation), ["One?", "First."]);
  assertWhole(conversation);
  const later = reopened(conversation);
  later.switchBranch(later.messages[1], -1);
  assert.deepEqual(texts(later), ["One?", "stopped", "Two?", "Second."]);
});

test("an answer that was refused is replaced when it is tried again, and its question leaves the draft", () => {
  const conversation = begin();
  conversation.ask("One?");
  refuse(conversation);
  conversation.regenerate(conversation.messages.at(-1));
  assert.equal(conversation.draft.text, "");
  reply(conversation, "First.");
  assert.deepEqual(library.messages(conversation.id).map(({ text }) => text), ["One?", "First."]);
  assert.equal(library.get(conversation.id).draft, "");
});

test("files of a refused question leave the draft when it is tried again, and others stay", () => {
  const [notes, more] = ["notes", "more"].map((text) => ({ name: `${text}.txt`, text }));
  const conversation = begin();
  conversation.ask("", [notes]);
  refuse(conversation);
  const later = reopened(conversation);
  later.draft.attach([more]);
  later.regenerate(later.messages.at(-1));
  assert.deepEqual(later.draft.files, [more]);
  assert.deepEqual(library.get(conversation.id).files, [more]);
});

test("an answer that only calls tools stays when it is answered again", () => {
  const conversation = begin();
  conversation.ask("One?");
  const { stream } = conversation.open;
  conversation.receive(stream, { t: "delta", k: 1, tool: [{ k: 0, id: "call", name: "search", a: "{}" }] });
  conversation.receive(stream, { t: "done" });
  conversation.regenerate(conversation.messages.at(-1));
  reply(conversation, "First.");
  assert.deepEqual(conversation.branches(conversation.messages.at(-1)), { number: 2, count: 2 });
  assert.equal(library.messages(conversation.id).length, 3);
});

test("a conversation of 200,000 messages is opened", () => {
  const messages = Array.from({ length: 200_000 }, (_, index) => ({
    id: `m${index}`, conversation: "c", parent: null, role: "user", text: "", createdAt: index,
  }));
  assert.equal(new Tree(messages).all.length, 200_000);
});

/** Ask a question that is answered by the call of a tool; return the answer. */
function askForCall(conversation) {
  conversation.ask("How is it?");
  const { stream } = conversation.open;
  conversation.receive(stream, { t: "delta", k: 1, tool: [{ k: 0, id: "a", name: "weather" }, { k: 0, a: "{}" }] });
  conversation.receive(stream, { t: "done" });
  return conversation.messages.at(-1);
}

const result = (text) => [{ id: "a", name: "weather", text }];

test("a conversation goes on with the results of calls, and with other results on a branch of its own", () => {
  const conversation = begin();
  conversation.giveResults(askForCall(conversation), result("sun"));
  assert.deepEqual(conversation.open.request.messages.at(-1), { role: "tool", tool_call_id: "a", content: "sun" });
  reply(conversation, "Fine.");
  const given = conversation.messages.at(-2);
  assert.deepEqual(reopened(conversation).messages.at(-2).results, result("sun"));
  conversation.edit(given.id);
  conversation.giveResults(given, result("rain"));
  assert.equal(conversation.editing, null);
  assert.equal(conversation.open.request.messages.at(-1).content, "rain");
  assert.deepEqual(conversation.branches(conversation.messages.at(-2)), { number: 2, count: 2 });
});

test("results that the server refuses stay, and do not go into the field", () => {
  const conversation = begin();
  conversation.giveResults(askForCall(conversation), result("sun"));
  refuse(conversation);
  assert.equal(conversation.draft.text, "");
  const refused = conversation.messages.at(-1);
  assert.equal(refused.isReturned, undefined);
  conversation.regenerate(refused);
  assert.equal(conversation.open.request.messages.at(-1).content, "sun");
});

test("a question that waits in one tab is shown by the others, until it is asked", () => {
  const conversation = begin();
  conversation.ask("One?");
  conversation.ask("Two?");
  conversation.keep();
  const other = reopened(conversation);
  assert.deepEqual([other.queuedElsewhere.text, other.draft.queued], ["Two?", null]);
  assert.equal(conversation.queuedElsewhere, undefined);
  reply(conversation, "First.");
  conversation.keep();
  assert.deepEqual([other.queuedElsewhere, conversation.queuedElsewhere], [undefined, undefined]);
});

test("other tabs are given more time to answer before something is done that cannot be taken back", async () => {
  const conversation = begin();
  conversation.ask("One?");
  const { id, stream } = conversation.open;
  const asked = async (other) => {
    const found = [];
    await other.settle(async (held, isFinal) => {
      found.push([held, isFinal]);
      return false;
    });
    return found;
  };
  conversation.keep();
  assert.deepEqual(await asked(reopened(conversation)), [[id, true]]);
  conversation.receive(stream, { t: "delta", k: 1, x: "Half" });
  conversation.ask("Two?");
  conversation.keep();
  const other = reopened(conversation);
  const question = [conversation.draft.queued.id, true];
  assert.deepEqual(await asked(other), [[id, true], question]);
  other.messages.at(-1).position = { stream: "s", after: [1] };
  assert.deepEqual(await asked(other), [[id, false], question]);
});
