import assert from "node:assert/strict";
import test, { beforeEach } from "node:test";
import { Search } from "../../../app/static/store/search.js";

const CONVERSATION = { id: "c", title: "Bread" };
let messages;

beforeEach(() => {
  messages = [];
});

const message = (id, text, more = {}) => ({ id, conversation: "c", role: "user", text, createdAt: messages.length, ...more });

/** The message and the excerpt that a query finds, or null. */
async function find(query) {
  const search = new Search(async () => messages);
  await search.prepare();
  const [found] = search.find([CONVERSATION], query);
  return found?.place && [found.place.message, found.place.excerpt.join("")];
}

test("the oldest message with most of the words is found", async () => {
  messages = [message("a", "Yeast."), message("b", "Yeast and flour."), message("c", "Flour and yeast.")];
  assert.deepEqual(await find("yeast flour"), ["b", "Yeast and flour."]);
  assert.equal(await find("salt"), undefined);
});

test("what stands in the title already is found where nothing else has as many of the words", async () => {
  messages = [message("a", CONVERSATION.title), message("b", "Bread is baked.", { createdAt: 0 })];
  assert.deepEqual(await find("bread"), ["b", "Bread is baked."]);
  messages = [message("a", CONVERSATION.title), message("b", "It is baked.")];
  assert.deepEqual(await find("bread"), ["a", "Bread"]);
});

test("results of tools are found", async () => {
  messages = [message("a", "", { results: [{ id: "1", name: "look", text: "nothing" }, { id: "2", name: "look", text: "Rye only" }] })];
  assert.deepEqual(await find("rye"), ["a", "nothing Rye only"]);
});

test("what the page asks for a summary is not found, and the summary is", async () => {
  messages = [
    message("a", "Summarize our conversation.", { keeps: 3 }),
    message("b", "It was about summarizing.", { role: "assistant", keeps: undefined }),
  ];
  assert.deepEqual(await find("summarize"), undefined);
  assert.deepEqual(await find("summarizing"), ["b", "It was about summarizing."]);
});
