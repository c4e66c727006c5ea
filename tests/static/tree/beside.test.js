import assert from "node:assert/strict";
import test, { beforeEach, mock } from "node:test";
import { begin, library, link, refuse, reopened, reply } from "../conversation/conversations.js";

/** What was asked of the link. @type {any[]} */
let asked;

beforeEach(() => {
  asked = [];
  const open = (...what) => {
    asked.push(what);
    return { id: what[1], isAccepted: false, position: null };
  };
  mock.method(link, "start", (id, request) => open("start", id, request));
  mock.method(link, "resume", (id, position) => open("resume", id, position));
  mock.method(link, "cancel", (id, stop) => asked.push(["cancel", id, stop]));
});

/** A conversation with so many answers at once, to a question that was asked. */
function askSeveral(n) {
  const conversation = begin();
  conversation.configure({ n });
  conversation.ask("Tell.");
  return conversation;
}

const shown = (conversation) => conversation.besides(conversation.messages.at(-1));
const texts = (conversation) => shown(conversation).map(({ text, state }) => text || state);

/** One frame of the open answers. */
const receive = (conversation, frame) => conversation.receive(conversation.open.stream, frame);

/** The server keeps the answers, and the page has received so many tokens of each. */
function accept(conversation, ...after) {
  Object.assign(conversation.open.stream, { isAccepted: true, position: { stream: "s", after } });
  receive(conversation, { t: "accepted" });
}

test("one request asks for all answers, and each choice is written into its own", () => {
  const conversation = askSeveral(3);
  assert.deepEqual(asked.map(([what, , { n }]) => [what, n]), [["start", 3]]);
  for (const [i, x] of [[2, "c"], [0, "a"], [1, "b"], [0, "!"]]) receive(conversation, { t: "delta", i, k: 1, x });
  assert.deepEqual(texts(conversation), ["a!", "b", "c"]);
  assert.deepEqual(shown(conversation).map(({ parent }) => parent), Array(3).fill(conversation.messages[0].id));
  assert.ok(shown(conversation).every(({ id }) => conversation.writes(id)));
});

test("each answer has its own end and figures, and all are open until the last one has ended", () => {
  const conversation = askSeveral(2);
  receive(conversation, { t: "delta", i: 0, k: 3, x: "a" });
  receive(conversation, { t: "finish", i: 0, finish_reason: "stop" });
  receive(conversation, { t: "delta", i: 1, k: 5, x: "b" });
  assert.deepEqual(shown(conversation).map(({ state, finish }) => [state, finish]), [["streaming", "stop"], ["streaming", undefined]]);
  receive(conversation, { t: "finish", i: 1, finish_reason: "length" });
  receive(conversation, { t: "done", usage: { prompt_tokens: 9, completion_tokens: 8 }, timings: { decode_tok_s: 100 } });
  assert.deepEqual(shown(conversation).map(({ state, finish, usage }) => [state, finish, usage.completion_tokens]), [
    ["done", "stop", 3], ["done", "length", 5],
  ]);
});

test("one that is chosen goes on, and the others are its branches; so after a reload", () => {
  const conversation = askSeveral(3);
  for (const i of [0, 1, 2]) receive(conversation, { t: "delta", i, k: 1, x: `answer ${i}` });
  receive(conversation, { t: "done" });
  const other = reopened(conversation);
  assert.deepEqual(texts(other), ["answer 0", "answer 1", "answer 2"]);
  conversation.choose(shown(conversation)[1]);
  for (const each of [conversation, reopened(conversation)]) {
    assert.deepEqual(texts(each), ["answer 1"]);
    assert.deepEqual(each.branches(each.messages.at(-1)), { number: 2, count: 3 });
    each.switchBranch(each.messages.at(-1), 1);
    assert.deepEqual(texts(each), ["answer 2"]);
  }
  other.merge(library.get(conversation.id), library.messages(conversation.id));
  assert.ok(shown(other).every(({ beside }) => !beside), "so in another tab");
});

test("what is asked, answered again or edited chooses, too", () => {
  const acts = {
    ask: (conversation) => conversation.ask("And?"),
    regenerate: (conversation) => conversation.regenerate(shown(conversation)[1]),
    editAnswer: (conversation) => conversation.editAnswer(shown(conversation)[1], "Mine."),
  };
  for (const [name, act] of Object.entries(acts)) {
    const conversation = askSeveral(2);
    for (const i of [0, 1]) receive(conversation, { t: "delta", i, k: 1, x: `answer ${i}` });
    receive(conversation, { t: "done" });
    const before = shown(conversation);
    act(conversation);
    assert.ok(before.every((each) => conversation.besides(each).length === 1), name);
    const stored = library.messages(conversation.id).filter(({ text }) => text.startsWith("answer"));
    assert.ok(stored.length === 2 && stored.every(({ beside }) => !beside), name);
  }
});

test("a stop ends all that have not ended, by one word to the server", () => {
  const conversation = askSeveral(3);
  accept(conversation, 1, 0, 0);
  receive(conversation, { t: "delta", i: 0, k: 1, x: "a" });
  receive(conversation, { t: "finish", i: 0, finish_reason: "stop" });
  conversation.stop();
  assert.deepEqual(shown(conversation).map(({ state }) => state), ["done", "stopped", "stopped"]);
  assert.deepEqual(asked[1], ["cancel", shown(conversation)[0].id, { position: { stream: "s", after: [1, 0, 0] } }]);
});

test("when the request fails each answer says so that has not ended", () => {
  const conversation = askSeveral(3);
  receive(conversation, { t: "delta", i: 0, k: 1, x: "a" });
  receive(conversation, { t: "finish", i: 0, finish_reason: "stop" });
  receive(conversation, { t: "delta", i: 1, k: 1, x: "b" });
  refuse(conversation);
  assert.deepEqual(shown(conversation).map(({ state, error }) => [state, error]), [
    ["done", undefined], ["failed", "No."], ["failed", "No."],
  ]);
  assert.equal(conversation.draft.text, "", "the question has an answer");
});

test("a request that is refused is one failure, and its question is back in the field", () => {
  const conversation = askSeveral(4);
  refuse(conversation);
  assert.deepEqual([shown(conversation).length, conversation.draft.text], [1, "Tell."]);
  assert.equal(library.messages(conversation.id).length, 2);
});

test("another page goes on with all of them, each from where it was stored", async () => {
  const conversation = askSeveral(3);
  accept(conversation, 2, 0, 1);
  receive(conversation, { t: "delta", i: 0, k: 2, x: "a" });
  receive(conversation, { t: "delta", i: 2, k: 1, x: "c" });
  receive(conversation, { t: "finish", i: 2, finish_reason: "stop" });
  conversation.keep();
  const next = reopened(conversation);
  await next.settle(async () => true);
  assert.deepEqual(asked.slice(1), [["resume", next.open.id, { stream: "s", after: [2, 0, 1] }]]);
  receive(next, { t: "delta", i: 1, k: 1, x: "b" });
  receive(next, { t: "done" });
  assert.deepEqual(texts(next), ["a", "b", "c"]);
  assert.ok(shown(next).every(({ state, position }) => state === "done" && position === undefined));
});

test("a page that ended before the request was accepted is followed by one that asks for as many", async () => {
  const conversation = askSeveral(3);
  conversation.configure({});
  const next = reopened(conversation);
  await next.settle(async () => true);
  assert.deepEqual(asked.map(([, id, { n }]) => [id, n]), Array(2).fill([conversation.open.id, 3]));
});

test("what nobody can go on with is interrupted, but for what had ended", async () => {
  const conversation = askSeveral(2);
  receive(conversation, { t: "delta", i: 0, k: 1, x: "a" });
  receive(conversation, { t: "finish", i: 0, finish_reason: "stop" });
  receive(conversation, { t: "delta", i: 1, k: 1, x: "b" });
  conversation.keep();
  const next = reopened(conversation);
  await next.settle(async () => true);
  assert.deepEqual(shown(next).map(({ state }) => state), ["done", "interrupted"]);
});

test("the rest of one of them is asked for alone", () => {
  const conversation = askSeveral(2);
  receive(conversation, { t: "delta", i: 0, k: 1, x: "a" });
  receive(conversation, { t: "delta", i: 1, k: 1, x: "b" });
  conversation.stop();
  conversation.continueAnswer(shown(conversation)[1]);
  assert.equal(asked.at(-1)[2].n, undefined);
  reply(conversation, "!");
  assert.deepEqual(texts(conversation), ["b!"]);
});
