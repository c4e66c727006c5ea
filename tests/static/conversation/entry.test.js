import assert from "node:assert/strict";
import test from "node:test";
import { deleteFrom } from "../../../app/static/tree/deletion.js";
import { ask, askDraft, begin, kept, library, refuse, reply } from "./conversations.js";

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
