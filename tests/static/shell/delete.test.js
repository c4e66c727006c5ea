import assert from "node:assert/strict";
import test, { beforeEach } from "node:test";
import { Desk } from "../../../app/static/conversation/desk.js";
import { deleteMessage } from "../../../app/static/shell/delete.js";
import { tabStorage } from "../../../app/static/store/web_storage.js";
import { open } from "../store/libraries.js";

/** What was said last: `{text, undo}`. */
let said;

beforeEach(() => {
  Object.assign(globalThis, { addEventListener: () => {}, location: { hash: "" }, history: { pushState: () => {} } });
  tabStorage.remove("quire.new");
  said = undefined;
});

const link = { isReady: true, canContinue: true, model: "guide", start: (id) => ({ id }), cancel: () => {} };

/** A page whose conversation has been asked questions, each of which was answered. */
async function page(...questions) {
  let desk;
  const library = await open({ onRemoved: (ids) => desk.onRemoved(ids) });
  desk = new Desk(link, library, { onChange: () => {}, onGrowth: () => {} }, () => ({}));
  for (const question of questions) {
    desk.ask(question, []);
    answer(desk.current, { x: `Answer to ${question}` });
  }
  return { desk, library, say: (text, _action, undo) => (said = { text, undo }) };
}

function answer(conversation, delta) {
  const { stream } = conversation.open;
  conversation.receive(stream, { t: "delta", k: 1, ...delta });
  conversation.receive(stream, { t: "done" });
}

const texts = ({ desk }) => desk.current.messages.map(({ text }) => text);

test("the only turn goes with its conversation, and the settings and the draft stay until it is put back", async () => {
  const shown = await page("One?");
  const { desk, library } = shown;
  const { id } = desk.current;
  desk.current.configure({ seed: 7 });
  desk.current.draft.write("Half");
  desk.current.draft.attach([{ name: "notes.txt", text: "notes" }]);
  await deleteMessage(shown, desk.current.messages[1]);
  assert.equal(said.text, "“One?” was deleted.");
  assert.deepEqual([library.list, desk.current.isEmpty, desk.current.id === id], [[], true, false]);
  const { settings, draft } = desk.current;
  assert.deepEqual([settings, draft.text, draft.files.length], [{ seed: 7 }, "Half", 1]);
  await said.undo();
  assert.deepEqual([desk.current.id, texts(shown)], [id, ["One?", "Answer to One?"]]);
  assert.deepEqual([desk.current.settings, desk.current.draft.text], [{ seed: 7 }, "Half"]);
  desk.startNew();
  assert.deepEqual([desk.current.settings, desk.current.draft.text], [{}, ""]);
});

test("what was written in a new chat stays behind the draft of a deleted conversation", async () => {
  const shown = await page("One?");
  const { desk } = shown;
  const { id } = desk.current;
  desk.startNew();
  desk.current.draft.write("Another");
  await desk.open(id);
  desk.current.draft.write("Half");
  await deleteMessage(shown, desk.current.messages[0]);
  assert.equal(desk.current.draft.text, "Half\n\nAnother");
  await said.undo();
  desk.startNew();
  assert.equal(desk.current.draft.text, "Another");
});

test("what was written since a conversation was deleted stays when it is put back", async () => {
  const shown = await page("One?");
  const { desk } = shown;
  desk.current.draft.write("Half");
  await deleteMessage(shown, desk.current.messages[0]);
  desk.current.draft.write("Half and more");
  await said.undo();
  desk.startNew();
  assert.equal(desk.current.draft.text, "Half and more");
});

test("what is said of a deleted turn counts calls of tools and their results as its answer", async () => {
  const shown = await page("One?");
  const { desk } = shown;
  desk.ask("Two?", []);
  answer(desk.current, { tool: [{ k: 0, id: "a", name: "look" }, { k: 0, a: "{}" }] });
  desk.current.giveResults(desk.current.messages.at(-1), [{ id: "a", name: "look", text: "yes" }]);
  answer(desk.current, { x: "Second." });
  await deleteMessage(shown, desk.current.messages.at(-1));
  assert.equal(said.text, "The question and its answer were deleted.");
  assert.deepEqual(texts(shown), ["One?", "Answer to One?"]);
  await said.undo();
  desk.current.giveResults(desk.current.messages[3], [{ id: "a", name: "look", text: "no" }]);
  answer(desk.current, { x: "Other." });
  await deleteMessage(shown, desk.current.messages.at(-1));
  assert.equal(said.text, "The answer was deleted; its other versions stay.");
  assert.deepEqual(texts(shown).at(-1), "Second.");
});
