import assert from "node:assert/strict";
import test from "node:test";
import { addImported } from "../../../app/static/store/copies.js";
import { Database } from "../../../app/static/store/database.js";
import { readRecords } from "../../../app/static/store/removal.js";
import { newConversation } from "../../../app/static/tree/records.js";
import { failing, make, message, open, saved, writing } from "./libraries.js";

test("what was saved is there after the page was opened again, without the fields of the page", async () => {
  const conversation = await saved(await open(), "First");
  const later = await open();
  assert.deepEqual(later.list, [conversation]);
  const [kept] = await later.messages(conversation.id);
  assert.equal(kept.text, "a question");
  assert.equal("watch" in kept, false);
});

test("pinned conversations come first, then the newest", async () => {
  const library = await open();
  const old = await saved(library, "old", [], 1);
  await saved(library, "new", [], 2);
  library.update(old.id, { isPinned: true });
  assert.deepEqual(library.list.map(({ title }) => title), ["old", "new"]);
});

test("search finds all words in titles and texts, also of messages that were saved after it", async () => {
  const library = await open();
  const bread = await saved(library, "Bread", ["How much Yeast?"]);
  await saved(library, "Paper", ["How is it made?"]);
  const titles = async (query) => (await library.search(query)).map(({ conversation }) => conversation.title);
  assert.deepEqual(await titles("yeast BREAD"), ["Bread"]);
  assert.deepEqual((await titles("how")).length, 2);
  library.save(bread, [message(bread, "later", "and salt")]);
  assert.deepEqual(await titles("salt"), ["Bread"]);
  assert.deepEqual(await titles("pepper"), []);
});

test("a search gives the place with the most of the words, the oldest of several, and none for a title alone", async () => {
  const library = await open();
  const bread = await saved(library, "Bread", []);
  const texts = ["salt", "Yeast and flour", "flour", "yeast, flour"];
  library.save(bread, texts.map((text, index) => ({ ...message(bread, `m${index}`, text), createdAt: 9 - index })));
  const placeOf = async (query) => (await library.search(query))[0].place;
  assert.equal((await placeOf("flour yeast bread"))?.message, "m3");
  assert.deepEqual((await placeOf("flour yeast")).excerpt, ["", "yeast", ", ", "flour", ""]);
  assert.equal((await placeOf("SALT")).message, "m0");
  assert.equal((await placeOf("flour")).message, "m3");
  assert.equal(await placeOf("bread"), null);
});

test("an import with existing ids adds copies and changes nothing that is stored", async () => {
  const library = await open();
  const conversation = await saved(library, "one", ["a"]);
  const records = await readRecords(library, [conversation.id]);
  const changed = { ...records, messages: records.messages.map((each) => ({ ...each, text: "b" })) };
  assert.deepEqual(await addImported(library, changed), { numAdded: 1, numCopies: 1, numKnown: 0 });
  assert.equal(library.list.length, 2);
  assert.deepEqual((await library.messages(conversation.id)).map(({ text }) => text), ["a"]);
});

test("an import leaves out conversations that are stored with the same messages, also under another title", async () => {
  const library = await open();
  const conversation = await saved(library, "one", ["a"]);
  const records = await readRecords(library, [conversation.id]);
  library.update(conversation.id, { title: "other" });
  assert.deepEqual(await addImported(library, records), { numAdded: 0, numCopies: 0, numKnown: 1 });
  assert.deepEqual(library.list.map(({ title }) => title), ["other"]);
});

test("removed messages are not found any more", async () => {
  const library = await open();
  const conversation = await saved(library, "One", ["a loaf"]);
  assert.equal((await library.search("loaf")).length, 1);
  library.save(conversation, [], [`${conversation.id}-0`]);
  assert.deepEqual(await library.search("loaf"), []);
});

test("messages that another tab has removed are not found any more", async () => {
  const two = await open();
  let heard;
  const library = await open({ onSaved: () => heard() });
  const heardOf = async (change) => {
    const hearing = new Promise((resolve) => (heard = resolve));
    const result = change();
    await hearing;
    return result;
  };
  const conversation = await heardOf(() => saved(two, "One", ["a loaf"]));
  assert.equal((await library.search("loaf")).length, 1);
  await heardOf(() => two.save(conversation, [], [`${conversation.id}-0`]));
  assert.deepEqual(await library.search("loaf"), []);
});

test("a read that began before a change was stored gives the change", async () => {
  const library = await open();
  const conversation = await saved(library, "one", ["old", "other"]);
  const reading = library.messages(conversation.id);
  library.save(conversation, [message(conversation, `${conversation.id}-0`, "new")], [`${conversation.id}-1`]);
  assert.deepEqual((await reading).map(({ text }) => text), ["new"]);
});

test("tabs learn of each other's changes, and who is writing an answer", async () => {
  const told = [];
  const one = await open();
  let heard;
  const hearing = new Promise((resolve) => (heard = resolve));
  const two = await open({ onSaved: (id) => heard(id), onRemoved: (ids) => told.push(...ids) });
  const conversation = await saved(one, "shared");
  assert.equal(await hearing, conversation.id);
  assert.equal(two.get(conversation.id).title, "shared");
  writing.add("m");
  assert.equal(await two.isHeldElsewhere("m"), true);
  writing.delete("m");
  assert.equal(await two.isHeldElsewhere("m"), false);
  await one.remove([conversation.id]);
  while (told.length < 2) await new Promise((resolve) => setImmediate(resolve));
  assert.deepEqual([new Set(told), two.list], [new Set([conversation.id]), []]);
});

test("two questions at once who writes an answer get the same answer", async () => {
  await open();
  const two = await open();
  writing.add("m");
  assert.deepEqual(await Promise.all([two.isHeldElsewhere("m"), two.isHeldElsewhere("m")]), [true, true]);
  writing.delete("m");
});

test("an answer whose end is not stored yet counts as being written", async () => {
  const [one, two] = [await open(), await open()];
  const conversation = await saved(one, "one");
  await failing("full", async () => {
    one.save(conversation, [message(conversation, "n", "the end")]);
    assert.equal(await two.isHeldElsewhere("n"), true);
  });
});

test("what is asked for before the storage is open waits for it", async () => {
  const conversation = await saved(await open(), "one", ["a loaf"]);
  const library = make();
  const asked = Promise.all([library.messages(conversation.id), library.presets(), library.search("loaf")]);
  await library.open();
  const [messages, storage] = await asked;
  assert.equal(messages.length, 1);
  assert.deepEqual(await storage.presets(), []);
  assert.equal(library.problem, "");
});

test("a conversation that was never stored is not among the changed ones", async () => {
  const library = await open();
  library.save(newConversation(1), []);
  assert.deepEqual([library.unstored.conversations.length, library.unstored.changed], [1, []]);
});

test("of changes that are not stored yet it is known what the user has changed in the list", async () => {
  const library = await open();
  const { id } = await saved(library, "one");
  library.update(id, { draft: "Half", title: "From the question" });
  assert.deepEqual(library.unstored.listed, { [id]: {} });
  library.update(id, { title: "Mine", titleFrom: "user", isPinned: true });
  assert.deepEqual(library.unstored.listed, { [id]: { title: "Mine", titleFrom: "user", isPinned: true } });
  await library.settled();
  library.update(id, { isPinned: false });
  assert.deepEqual(library.unstored.listed, { [id]: { isPinned: false } });
});

test("what is not stored yet is known, also while it is being written", async () => {
  const library = await open();
  const conversation = await saved(library, "one");
  assert.deepEqual(library.unstored, { conversations: [], messages: [], removed: [], changed: [], listed: {} });
  const { write } = Database.prototype;
  let unstored;
  Database.prototype.write = async function (...changes) {
    library.save(conversation, [message(conversation, "later", "b")], ["gone"]);
    unstored ??= library.unstored;
    return write.apply(this, changes);
  };
  library.save(conversation, [message(conversation, "first", "a")]);
  await library.settled();
  Database.prototype.write = write;
  assert.deepEqual(unstored.messages.map(({ id }) => id), ["first", "later"]);
  assert.deepEqual([unstored.conversations.length, unstored.removed], [1, ["gone"]]);
  assert.deepEqual(unstored.changed, [conversation.id]);
});
