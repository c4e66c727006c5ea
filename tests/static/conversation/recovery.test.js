import assert from "node:assert/strict";
import test, { beforeEach } from "node:test";
import { recover } from "../../../app/static/conversation/recovery.js";
import { newConversation } from "../../../app/static/tree/records.js";
import { FakeLibrary } from "./fake_library.js";

let library;

beforeEach(() => {
  library = new FakeLibrary();
});

const record = { ...newConversation(1), title: "Old", draft: "Half" };
const message = (text, state) => ({
  id: "m", conversation: record.id, parent: null, role: "assistant", text, state, createdAt: 1,
});

async function recovered(stored, unstored) {
  library.save(stored.conversation ?? record, stored.messages);
  await recover(library, { conversations: [unstored.conversation ?? record], messages: unstored.messages ?? [], removed: [] });
  return { conversation: library.get(record.id), message: library.stored.get("m") };
}

test("a conversation that was renamed and pinned since keeps its title and its pin", async () => {
  const stored = { ...record, title: "New", titleFrom: "user", isPinned: true, draft: "" };
  const { conversation } = await recovered({ conversation: stored }, {});
  assert.deepEqual(conversation, { ...stored, draft: "Half" });
});

test("what the user has changed in the list is stored, whatever is stored there", async () => {
  library.save({ ...record, isPinned: true, draft: "" }, []);
  const listed = { [record.id]: { title: "Mine", titleFrom: "user" } };
  await recover(library, { conversations: [{ ...record, title: "Mine", titleFrom: "user" }], messages: [], removed: [], listed });
  assert.deepEqual(library.get(record.id), { ...record, title: "Mine", titleFrom: "user", isPinned: true });
});

test("a conversation that went on since keeps its end, and its draft if there is one", async () => {
  const unstored = { conversation: { ...record, head: "old" } };
  const stored = { ...record, head: "new", updatedAt: 2, draft: "" };
  assert.deepEqual((await recovered({ conversation: stored }, unstored)).conversation, { ...stored, draft: "Half" });
  const written = { ...stored, draft: "Later" };
  assert.deepEqual((await recovered({ conversation: written }, unstored)).conversation, written);
});

test("a conversation that did not go on gets the end that was not stored", async () => {
  const { conversation } = await recovered({}, { conversation: { ...record, updatedAt: 2, head: "m" } });
  assert.deepEqual([conversation.head, conversation.updatedAt], ["m", 2]);
});

test("an answer that has ended in the storage is not opened again", async () => {
  const { message: kept } = await recovered({ messages: [message("Half and all", "done")] }, { messages: [message("Half", "streaming")] });
  assert.deepEqual([kept.text, kept.state], ["Half and all", "done"]);
});

test("an open answer does not lose text", async () => {
  const { message: kept } = await recovered({ messages: [message("Half and", "streaming")] }, { messages: [message("Half", "streaming")] });
  assert.equal(kept.text, "Half and");
});

test("an answer whose end was not stored gets it", async () => {
  const { message: kept } = await recovered({ messages: [message("Half", "streaming")] }, { messages: [message("Half and all", "done")] });
  assert.deepEqual([kept.text, kept.state], ["Half and all", "done"]);
});

test("what another tab has marked as interrupted gets the end that was not stored", async () => {
  const { message: kept } = await recovered({ messages: [message("Half", "interrupted")] }, { messages: [message("Half and all", "done")] });
  assert.deepEqual([kept.text, kept.state], ["Half and all", "done"]);
});

test("changes of a stored conversation are lost only where it was deleted, not where the list could not be read", async () => {
  const unstored = { conversations: [record], messages: [], removed: [], changed: [record.id] };
  await recover(library, unstored);
  assert.equal(library.get(record.id), undefined);
  library.problem = "The storage has failed.";
  await recover(library, unstored);
  assert.equal(library.get(record.id).draft, "Half");
});
