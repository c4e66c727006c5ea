import assert from "node:assert/strict";
import test, { beforeEach, mock } from "node:test";
import { isCut } from "../../../app/static/conversation/answer.js";
import { Conversation } from "../../../app/static/conversation/conversation.js";
import { deleteFrom, deletedWith, restoreIn } from "../../../app/static/conversation/deletion.js";
import { Tree } from "../../../app/static/conversation/tree.js";
import { newConversation } from "../../../app/static/store/records.js";
import { FakeLibrary } from "./fake_library.js";

let library;
/** What was kept of conversations without messages. */
let kept;

let clock = 0;
// Messages of the same millisecond have no order.
mock.method(Date, "now", () => (clock += 1));

beforeEach(() => {
  library = new FakeLibrary();
  kept = [];
});

const link = { isReady: true, canContinue: true, model: "guide", start: (id) => ({ id }), cancel: () => {} };
const services = () => ({ link, library, onChange: () => {}, onGrowth: () => {}, keepNew: (fields) => kept.push(fields) });
const begin = () => new Conversation(newConversation(1), [], services());
/** The conversation as a page shows it that reads it now: after a reload, or in another tab. */
const reopened = ({ id }) => new Conversation(library.get(id), library.messages(id), services());
const texts = ({ messages }) => messages.map(({ text, state }) => text || state);

function ask(conversation, question, answer) {
  conversation.ask(question);
  reply(conversation, answer);
}

function reply(conversation, answer) {
  const { stream } = conversation.open;
  conversation.receive(stream, { t: "delta", k: 1, x: answer });
  conversation.receive(stream, { t: "done" });
}

function refuse(conversation, code = "overloaded") {
  conversation.receive(conversation.open.stream, { t: "error", code, message: "No." });
}

/** Ask what is in the draft, as the field does. */
function askDraft(conversation) {
  const { text } = conversation.draft;
  conversation.draft.write("");
  conversation.ask(text);
}

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
  conversation.lose(1006);
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

test("a title is that of the first question that is left, unless the user has written it", () => {
  const conversation = begin();
  const title = () => library.get(conversation.id).title;
  conversation.ask("Old?");
  refuse(conversation);
  assert.equal(title(), "Old?");
  conversation.draft.write("New?");
  askDraft(conversation);
  assert.equal(title(), "New?");
  refuse(conversation);
  library.save({ ...library.get(conversation.id), title: "Mine", titleFrom: "user" });
  conversation.draft.write("Newer?");
  askDraft(conversation);
  reply(conversation, "First.");
  assert.equal(title(), "Mine");
});

test("a title that the model or the user has written stays when messages are deleted and edited", () => {
  for (const [titleFrom, expected] of [["question", "Two?"], ["model", "Written"], ["user", "Written"]]) {
    const conversation = begin();
    ask(conversation, "One?", "First.");
    library.save({ ...library.get(conversation.id), title: "Written", titleFrom });
    ask(conversation, "Two?", "Second.");
    conversation.editQuestion(conversation.messages[0], "Uno?");
    reply(conversation, "Primo.");
    const first = conversation.all.filter(({ text }) => ["One?", "First.", "Uno?", "Primo."].includes(text));
    conversation.change((tree, head) => deleteFrom(tree, head, first));
    assert.equal(library.get(conversation.id).title, expected);
  }
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

test("an answer that was shown as interrupted has no failure any more when its tab completes it", () => {
  const writer = begin();
  writer.ask("Why?");
  const watcher = reopened(writer);
  writer.receive(writer.open.stream, { t: "delta", k: 1, x: "So" });
  Object.assign(watcher.messages.at(-1), { state: "interrupted", error: "Lost.", code: "lost" });
  reply(writer, ".");
  watcher.merge(library.get(writer.id), library.messages(writer.id));
  const { text, state, error, code } = watcher.messages.at(-1);
  assert.deepEqual([text, state, error, code], ["So.", "done", undefined, undefined]);
});

test("only messages that another tab has changed have another version", () => {
  const writer = begin();
  ask(writer, "One?", "First.");
  ask(writer, "Two?", "Second.");
  const watcher = reopened(writer);
  const before = watcher.messages.map(({ version }) => version);
  writer.update(writer.messages[1], { keeps: 2 });
  watcher.merge(library.get(writer.id), library.messages(writer.id));
  const changed = watcher.messages.map(({ version }, index) => version !== before[index]);
  assert.deepEqual(changed, [false, true, false, false]);
});

test("messages that another tab has moved and removed are moved and removed here", () => {
  const writer = begin();
  ask(writer, "One?", "First.");
  writer.ask("Two?");
  writer.draft.write("Three?");
  refuse(writer);
  const failed = writer.messages.at(-1);
  askDraft(writer);
  reply(writer, "Third.");
  const watcher = reopened(writer);
  writer.takeBack(failed);
  askDraft(writer);
  reply(writer, "Second.");
  watcher.merge(library.get(writer.id), library.messages(writer.id));
  assert.deepEqual(texts(watcher), ["One?", "First.", "Three?", "Third.", "Two?", "Second."]);
});

test("a save here leaves the draft and the settings that another tab has stored", () => {
  const here = begin();
  ask(here, "One?", "First.");
  const there = reopened(here);
  there.draft.write("A long thought");
  there.keep();
  there.configure({ temperature: 0.2 });
  here.update(here.messages[1], { keeps: 2 });
  const { draft, settings } = library.get(here.id);
  assert.deepEqual([draft, settings], ["A long thought", { temperature: 0.2 }]);
  here.merge(library.get(here.id), library.messages(here.id));
  assert.deepEqual([here.draft.text, here.settings], ["A long thought", { temperature: 0.2 }]);
});

test("a draft of this page is stored again after another tab has sent a question", () => {
  const here = begin();
  ask(here, "One?", "First.");
  const there = reopened(here);
  here.draft.write("Mine");
  here.keep();
  there.draft.write("Theirs?");
  askDraft(there);
  assert.equal(library.get(here.id).draft, "");
  here.merge(library.get(here.id), library.messages(here.id));
  here.keep();
  assert.deepEqual([here.draft.text, library.get(here.id).draft], ["Mine", "Mine"]);
  reply(there, "Yes.");
  assert.equal(library.get(here.id).draft, "Mine");
});

test("a question that waits in one tab is no draft of another, and is put back when that tab has ended", async () => {
  const here = begin();
  here.ask("One?");
  here.draft.write("");
  here.ask("Two?");
  here.keep();
  const there = reopened(here);
  assert.deepEqual([there.draft.text, there.draft.queued], ["", null]);
  there.draft.write("Mine");
  await there.settle(async () => true);
  assert.equal(there.draft.text, "Two?\n\nMine");
  assert.deepEqual([library.get(here.id).draft, library.get(here.id).queued], ["Two?\n\nMine", null]);
});

test("settings of a new conversation are those of its first record, and what is set there is kept", () => {
  const conversation = begin();
  conversation.settings = { seed: 7 };
  conversation.draft.write("Half");
  conversation.keep();
  assert.deepEqual(kept.at(-1), { draft: "Half", files: [], queued: null });
  conversation.configure({ seed: 8 });
  assert.deepEqual(kept.at(-1).settings, { seed: 8 });
  const other = begin();
  other.settings = { seed: 9 };
  ask(other, "One?", "First.");
  assert.deepEqual(library.get(other.id).settings, { seed: 9 });
});

test("a conversation of 200,000 messages is opened", () => {
  const messages = Array.from({ length: 200_000 }, (_, index) => ({
    id: `m${index}`, conversation: "c", parent: null, role: "user", text: "", createdAt: index,
  }));
  assert.equal(new Tree(messages).all.length, 200_000);
});

test("a question that waits for another tab is asked once its answer is whole, and put back if it is not", () => {
  for (const state of ["done", "stopped"]) {
    const writer = begin();
    writer.ask("One?");
    const other = reopened(writer);
    other.ask("Two?");
    assert.equal(other.open, undefined);
    assert.equal(other.draft.queued.text, "Two?");
    writer.receive(writer.open.stream, { t: "delta", k: 1, x: "First." });
    if (state === "done") writer.receive(writer.open.stream, { t: "done" });
    else writer.stop();
    other.merge(library.get(writer.id), library.messages(writer.id));
    assert.equal(other.draft.queued, null);
    assert.deepEqual(texts(other), state === "done" ? ["One?", "First.", "Two?", "waiting"] : ["One?", "First."]);
    assert.equal(other.draft.text, state === "done" ? "" : "Two?");
  }
});

test("a question that waits for another tab waits on after a reload, unless a tab still lets it wait", async () => {
  for (const isHeld of [true, false]) {
    const writer = begin();
    writer.ask("One?");
    const other = reopened(writer);
    other.ask("Two?");
    other.keep();
    const { id } = library.get(writer.id).queued;
    const later = reopened(writer);
    // The writer still writes.
    await later.settle(async (each) => each === id && !isHeld);
    assert.equal(later.draft.queued?.text, isHeld ? undefined : "Two?");
    reply(writer, "First.");
    later.merge(library.get(writer.id), library.messages(writer.id));
    assert.deepEqual(texts(later), isHeld ? ["One?", "First."] : ["One?", "First.", "Two?", "waiting"]);
    assert.equal(library.get(writer.id).queued?.text, isHeld ? "Two?" : undefined);
  }
});

test("a question that is taken from the queue does not wait again before that is stored", async () => {
  const writer = begin();
  writer.ask("One?");
  const other = reopened(writer);
  other.ask("Two?");
  other.keep();
  other.draft.unqueue();
  await other.settle(async (each) => each === library.get(writer.id).queued.id);
  assert.deepEqual([other.draft.queued, other.draft.text], [null, "Two?"]);
});

test("a question that was asked meanwhile does not wait again", async () => {
  const writer = begin();
  writer.ask("One?");
  const other = reopened(writer);
  other.ask("Two?");
  other.keep();
  const later = reopened(writer);
  await later.settle(async (each) => {
    if (each !== other.draft.queued?.id) return false;
    reply(writer, "First.");
    other.merge(library.get(writer.id), library.messages(writer.id));
    return true;
  });
  assert.equal(later.draft.queued, null);
});

test("a cut that another tab has made and undone is none here", () => {
  const writer = begin();
  for (const number of ["1", "2", "3"]) ask(writer, `${number}?`, `${number}.`);
  writer.update(writer.messages[5], { keeps: 2 });
  const watcher = reopened(writer);
  const follow = () => watcher.merge(library.get(writer.id), library.messages(writer.id));
  const gone = deletedWith(new Tree(writer.all), writer.messages[5]);
  const { deletion } = writer.change((tree, head) => deleteFrom(tree, head, gone));
  follow();
  assert.equal(watcher.messages[3].keeps, 0);
  writer.change((tree, head) => restoreIn(tree, head, deletion));
  follow();
  assert.deepEqual(watcher.messages.map(({ keeps }) => keeps), [undefined, undefined, undefined, undefined, undefined, 2]);
});

test("a message that this page has written goes when another tab says that it was removed", () => {
  const writer = begin();
  ask(writer, "One?", "First.");
  ask(writer, "Two?", "Second.");
  const [, , { id }, answer] = writer.messages;
  const left = library.messages(writer.id).slice(0, 2);
  // Without a word it may only be not stored yet.
  writer.merge(library.get(writer.id), left);
  assert.equal(writer.messages.length, 4);
  writer.merge(library.get(writer.id), left, [id, answer.id]);
  assert.deepEqual(texts(writer), ["One?", "First."]);
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
