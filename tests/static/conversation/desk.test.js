import assert from "node:assert/strict";
import test, { beforeEach } from "node:test";
import { Desk } from "../../../app/static/conversation/desk.js";
// So that it is there as soon as the desk needs it.
import "../../../app/static/conversation/titler.js";
import { tabStorage } from "../../../app/static/store/web_storage.js";
import { isConversation, newConversation, toConversation } from "../../../app/static/tree/records.js";

let saved;
/** The conversations that were saved, by id. */
let kept;
let records;
/** Called while the messages of a conversation are being read. */
let whileReading;
let isHeldElsewhere;
/** What `whileReading` gives when the messages cannot be read. */
const FAILED = Symbol("failed");

beforeEach(() => {
  Object.assign(globalThis, { addEventListener: () => {}, location: { hash: "" }, history: { pushState: () => {} } });
  tabStorage.remove("quire.new");
  tabStorage.remove("quire.unstored");
  saved = [];
  kept = new Map();
  records = new Map();
  whileReading = async () => {};
  isHeldElsewhere = async () => false;
});

const library = {
  get: (id) => records.get(id)?.conversation,
  messages: async (id) => {
    const messages = records.get(id)?.messages ?? [];
    return (await whileReading()) === FAILED ? undefined : messages;
  },
  save: (conversation, messages) => {
    kept.set(conversation.id, toConversation(conversation));
    saved.push(...messages);
  },
  isHeldElsewhere: () => isHeldElsewhere(),
  unstored: { conversations: [], messages: [], removed: [], changed: [] },
  settled: async () => {},
};
const link = { isReady: true, canContinue: true, model: "guide", start: () => ({}), cancel: () => {} };
const makeDesk = () => new Desk(link, library, { onChange: () => {}, onGrowth: () => {} }, () => ({}));

function stored(title, state = "done") {
  const conversation = { ...newConversation(1, { seed: 7, temperature: 1 }), title };
  const { id } = conversation;
  const question = { id: `${id}-q`, conversation: id, parent: null, role: "user", text: "Why?", createdAt: 1 };
  const answer = { ...question, id: `${id}-a`, parent: question.id, role: "assistant", text: "Half", state };
  records.set(id, { conversation, messages: [question, answer] });
  return id;
}

/** All that has been started is over: the fakes wait for nothing outside. */
const settled = () => new Promise((resolve) => setImmediate(resolve));

test("a conversation that is opened while it is shown stays as it is, with its open answer and its files", async () => {
  const desk = makeDesk();
  const id = stored("one");
  await desk.open(id);
  const shown = desk.current;
  shown.draft.attach([{ name: "notes.txt", text: "notes" }]);
  shown.ask("And?");
  await desk.open(id);
  assert.equal(desk.current, shown);
  assert.equal(desk.current.open.state, "waiting");
  assert.equal(desk.current.draft.files.length, 1);
});

test("a conversation that is opened twice at once is one", async () => {
  const desk = makeDesk();
  const id = stored("one");
  let goOn;
  const first = desk.open(id);
  whileReading = () => new Promise((resolve) => (goOn = resolve));
  const second = desk.open(id);
  await first;
  const shown = desk.current;
  shown.ask("And?");
  goOn();
  await second;
  assert.equal(desk.current, shown);
});

test("an answer that another tab has ended, while this one asked who writes it, is not interrupted", async () => {
  const desk = makeDesk();
  const id = stored("one", "streaming");
  isHeldElsewhere = async () => {
    const { conversation, messages } = records.get(id);
    const ended = { ...messages[1], text: "Half and all", state: "done" };
    records.set(id, { conversation, messages: [messages[0], ended] });
    return false;
  };
  await desk.open(id);
  await settled();
  assert.deepEqual(saved, []);
});

test("an answer that was ended while the storage was read is not interrupted", async () => {
  const desk = makeDesk();
  const id = stored("one", "streaming");
  const { conversation, messages } = records.get(id);
  isHeldElsewhere = async () => {
    whileReading = async () => desk.current.merge(conversation, [messages[0], { ...messages[1], state: "done" }]);
    return false;
  };
  await desk.open(id);
  await settled();
  assert.equal(desk.current.messages[1].state, "done");
  assert.deepEqual(saved, []);
});

test("an open answer that no tab writes is interrupted", async () => {
  const desk = makeDesk();
  await desk.open(stored("one", "streaming"));
  await settled();
  assert.deepEqual(saved.map(({ state }) => state), ["interrupted"]);
});

test("a question that a page has sent before it ended is sent again, unless that was long ago", async () => {
  for (const [createdAt, states] of [[Date.now(), []], [Date.now() - 300_001, ["interrupted"]]]) {
    saved = [];
    const id = stored("one", "waiting");
    Object.assign(records.get(id).messages[1], { text: "", createdAt });
    const desk = makeDesk();
    await desk.open(id);
    await settled();
    assert.deepEqual(saved.map(({ state }) => state), states);
    assert.equal(desk.current.open?.request.messages.length, states.length ? undefined : 1);
  }
});

test("a conversation that is deleted while its answers are being settled is not stored again", async () => {
  const desk = makeDesk();
  const id = stored("one", "streaming");
  isHeldElsewhere = async () => {
    whileReading = async () => desk.onRemoved([id]);
    return false;
  };
  await desk.open(id);
  await settled();
  assert.deepEqual(saved, []);
});

test("what another tab has stored is merged with the record of now, also if it changed during the reading", async () => {
  const desk = makeDesk();
  const id = stored("one");
  await desk.open(id);
  whileReading = async () => {
    const { conversation, messages } = records.get(id);
    records.set(id, { conversation: { ...conversation, updatedAt: 7 }, messages });
  };
  const merged = [];
  const { merge } = desk.current;
  desk.current.merge = (...changes) => merged.push(changes) && merge.apply(desk.current, changes);
  await desk.onSaved(id);
  assert.deepEqual(merged.map(([record]) => record.updatedAt), [7]);
});

test("files beside the draft are there again after another conversation was shown", async () => {
  const desk = makeDesk();
  const [one, two] = [stored("one"), stored("two")];
  await desk.open(one);
  desk.current.draft.attach([{ name: "notes.txt", text: "notes" }]);
  await desk.open(two);
  assert.deepEqual(desk.current.draft.files, []);
  records.get(one).conversation = kept.get(one);
  await desk.open(one);
  assert.deepEqual(desk.current.draft.files, [{ name: "notes.txt", text: "notes" }]);
});

test("files beside the draft of a new conversation are there again, too", async () => {
  const desk = makeDesk();
  desk.current.draft.write("Read this.");
  desk.current.draft.attach([{ name: "notes.txt", text: "notes" }]);
  await desk.open(stored("one"));
  desk.startNew();
  assert.equal(desk.current.draft.text, "Read this.");
  assert.deepEqual(desk.current.draft.files, [{ name: "notes.txt", text: "notes" }]);
});

test("a question that waited is put back with its files when the page that let it wait has ended", async () => {
  const desk = makeDesk();
  const id = stored("one");
  await desk.open(id);
  desk.current.ask("And?");
  desk.current.ask("Then?", [{ name: "notes.txt", text: "notes" }]);
  desk.current.draft.write("Half");
  desk.current.draft.attach([{ name: "more.txt", text: "more" }]);
  desk.keep();
  assert.ok(isConversation(kept.get(id)));
  records.get(id).conversation = kept.get(id);
  const later = makeDesk();
  await later.open(id);
  const { text, files, queued } = later.current.draft;
  assert.deepEqual([text, files.map(({ name }) => name), queued], ["Then?\n\nHalf", ["notes.txt", "more.txt"], null]);
});

test("a question that waits for another tab waits and is asked while another conversation is shown", async () => {
  const desk = makeDesk();
  const [one, two] = [stored("one", "streaming"), stored("two")];
  isHeldElsewhere = async () => true;
  await desk.open(one);
  const waiting = desk.current;
  desk.current.ask("And?");
  const { queued } = waiting.draft;
  await desk.open(two);
  assert.deepEqual([desk.holds(queued.id), desk.holds("other"), kept.get(one).queued], [true, false, queued]);
  const { conversation, messages: [question, answer] } = records.get(one);
  records.set(one, { conversation, messages: [question, { ...answer, state: "done" }] });
  await desk.onSaved(one);
  assert.deepEqual([waiting.messages.map(({ text }) => text), waiting.open?.state], [["Why?", "Half", "And?", ""], "waiting"]);
  await desk.open(one);
  assert.equal(desk.current, waiting);
});

test("a question that waits for a tab that ends goes back into its draft, also where another conversation is shown", async () => {
  const desk = makeDesk();
  const [one, two] = [stored("one", "streaming"), stored("two")];
  isHeldElsewhere = async () => true;
  await desk.open(one);
  desk.current.ask("And?");
  await desk.open(two);
  isHeldElsewhere = async () => false;
  desk.settle();
  await settled();
  assert.deepEqual([kept.get(one).draft, kept.get(one).queued], ["And?", null]);
});

test("damaged files and waiting questions of a record are refused", () => {
  for (const more of [{ files: [{ name: "a" }] }, { files: "a" }, { queued: { text: "a" } }, { queued: "a" }]) {
    assert.equal(isConversation({ ...newConversation(1), ...more }), false, JSON.stringify(more));
  }
});

test("what a page could not store is stored later, but not into a conversation that was deleted since", async () => {
  const [changed, deleted, made] = [stored("changed"), stored("deleted"), stored("made")];
  const conversations = [changed, deleted, made].map((id) => records.get(id).conversation);
  const messages = [changed, deleted, made].flatMap((id) => records.get(id).messages);
  tabStorage.set("quire.unstored", JSON.stringify({ conversations, messages, removed: [], changed: [changed, deleted] }));
  records.delete(deleted);
  records.delete(made);
  await makeDesk().recover();
  assert.deepEqual([...kept.keys()], [changed, made]);
  assert.ok(saved.every(({ conversation }) => conversation !== deleted));
});

test("New chat keeps the text that was typed in a new chat", () => {
  const desk = makeDesk();
  desk.current.draft.write("Half a question");
  desk.startNew();
  assert.equal(desk.current.draft.text, "Half a question");
});

test("the draft and the settings of a new chat outlive a page that is ended without a word", (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const desk = makeDesk();
  desk.current.configure({ system: "A long prompt" });
  desk.current.draft.write("Half a question");
  context.mock.timers.tick(1000);
  const later = makeDesk();
  assert.deepEqual([later.current.draft.text, later.current.settings], ["Half a question", { system: "A long prompt" }]);
  later.current.draft.write("Half a question more");
  later.keep();
  assert.deepEqual(makeDesk().current.settings, { system: "A long prompt" });
});

test("what a new chat was asked is not the draft of the next, and its settings are not either", () => {
  const desk = makeDesk();
  desk.current.configure({ seed: 7 });
  desk.current.draft.write("Why?");
  desk.current.draft.write("");
  desk.ask("Why?", []);
  desk.startNew();
  assert.deepEqual([desk.current.draft.text, desk.current.settings], ["", {}]);
});

test("what is written and set before the conversation of the address is read belongs to it", async () => {
  const before = makeDesk();
  before.current.draft.write("Another one");
  before.keep();
  const id = stored("one");
  location.hash = `#${id}`;
  const desk = makeDesk();
  desk.current.configure({ temperature: 0.2 });
  desk.current.draft.write("And");
  desk.current.draft.attach([{ name: "notes.txt", text: "notes" }]);
  desk.keep();
  await desk.openAddress();
  assert.deepEqual([desk.current.id, desk.current.draft.text, desk.current.draft.files.length], [id, "And", 1]);
  assert.deepEqual(desk.current.settings, { seed: 7, temperature: 0.2 });
  desk.startNew();
  assert.equal(desk.current.draft.text, "Another one");
});

test("what is written before the conversation of the address is found deleted is in a new chat", async () => {
  const before = makeDesk();
  before.current.draft.write("Another one");
  before.keep();
  location.hash = "#gone";
  const desk = makeDesk();
  desk.current.draft.write("And");
  await desk.openAddress();
  assert.equal(desk.current.draft.text, "And\n\nAnother one");
});

test("a conversation whose messages cannot be read is not shown as an empty one", async () => {
  const desk = makeDesk();
  await desk.open(stored("one"));
  const shown = desk.current;
  whileReading = async () => FAILED;
  await desk.open(stored("two"));
  assert.equal(desk.current, shown);
});

test("messages that cannot be read stay shown when another tab has changed the conversation", async () => {
  const desk = makeDesk();
  const id = stored("one");
  await desk.open(id);
  whileReading = async () => FAILED;
  await desk.onSaved(id);
  assert.equal(desk.current.messages.length, 2);
});

test("what was not stored when the page was hidden is forgotten once it is stored", async () => {
  const desk = makeDesk();
  await desk.recover();
  let unstored = { conversations: [{ id: "a" }], messages: [], removed: [], changed: [] };
  let store;
  Object.defineProperty(library, "unstored", { get: () => unstored, configurable: true });
  library.settled = () => new Promise((resolve) => (store = resolve));
  desk.keep();
  assert.equal(JSON.parse(tabStorage.get("quire.unstored")).conversations.length, 1);
  unstored = { ...unstored, conversations: [] };
  store();
  await settled();
  assert.deepEqual(JSON.parse(tabStorage.get("quire.unstored")).conversations, []);
  library.settled = async () => {};
});

test("a page that ends before it has taken over what another had not stored does not replace it", async () => {
  tabStorage.set("quire.unstored", '{"conversations":[]}');
  makeDesk().keep();
  assert.equal(tabStorage.get("quire.unstored"), '{"conversations":[]}');
});

test("a title is asked for when nothing is being written, and given up for the next answer", async () => {
  const requests = [];
  const cancelled = [];
  const general = {
    ...link, answersAnything: true, details: {},
    start: (id, request) => {
      requests.push({ id, ...request });
      return { id, isOver: false };
    },
    cancel: (id) => cancelled.push(id),
  };
  const withList = { ...library, get: (id) => kept.get(id), update: () => {} };
  const desk = new Desk(general, withList, { onChange: () => {}, onGrowth: () => {} }, () => ({}));
  const answer = () => {
    const { stream } = desk.current.open;
    desk.receive(stream, { t: "delta", k: 1, x: "Yes." });
    desk.receive(stream, { t: "done" });
  };
  desk.ask("One?", []);
  desk.current.ask("Two, which waits?");
  answer();
  await settled();
  assert.equal(requests.length, 2, "the question that waited is asked, and no title");
  answer();
  await settled();
  assert.equal(requests.length, 3);
  assert.equal(requests[2].max_tokens, 16);
  assert.deepEqual(requests[2].messages.slice(0, 2).map(({ content }) => content), ["One?", "Yes."]);
  desk.ask("Three?", []);
  assert.deepEqual(cancelled, [requests[2].id]);
  answer();
  await settled();
  assert.equal(requests[4].max_tokens, 16, "it is asked for again");
  desk.lose(1006);
  desk.ask("Four?", []);
  assert.equal(requests.length, 6);
});

test("the address of the live view names no conversation: it stays, and the new one keeps its draft", async () => {
  const addresses = [];
  history.pushState = (...given) => addresses.push(given[2]);
  location.hash = "#live";
  const before = makeDesk();
  before.current.draft.write("Half a question");
  before.keep();
  const desk = makeDesk();
  const shown = desk.current;
  await desk.openAddress();
  assert.equal(desk.current, shown);
  assert.equal(desk.current.draft.text, "Half a question");
  assert.deepEqual(addresses, []);
});
