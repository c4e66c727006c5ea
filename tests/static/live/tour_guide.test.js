import assert from "node:assert/strict";
import test, { afterEach, beforeEach, mock } from "node:test";
import { TourEnded, TourGuide } from "../../../app/static/live/tour_guide.js";

class FakeSocket {
  static OPEN = 1;
  /** @type {FakeSocket} */
  static last;
  readyState = 1;
  sent = [];
  isClosed = false;
  /** @type {any} */
  onopen;
  /** @type {any} */
  onmessage;
  /** @type {any} */
  onclose;

  constructor() {
    FakeSocket.last = this;
  }

  send(text) {
    this.sent.push(JSON.parse(text));
  }

  close() {
    this.isClosed = true;
  }

  receive(frame) {
    this.onmessage?.({ data: JSON.stringify(frame) });
  }
}

beforeEach(() => mock.timers.enable({ apis: ["setTimeout", "setInterval"] }));
afterEach(() => mock.timers.reset());

/** A guide whose server has sent its welcome. */
async function begin() {
  const fakes = { WebSocket: FakeSocket, location: { href: "http://localhost/" }, document: { hidden: false } };
  for (const [name, value] of Object.entries(fakes)) Object.defineProperty(globalThis, name, { value, configurable: true });
  const guide = new TourGuide(null);
  const socket = FakeSocket.last;
  socket.onopen();
  socket.receive({ t: "welcome", limits: { window: 256 }, heartbeat_ms: 15_000 });
  await guide.welcome;
  return { guide, socket };
}

const delta = (id, n, k) => ({ t: "delta", id, i: 0, n, k, x: "word" });

test("answers of one tour share a salt that nobody else has", async () => {
  const [{ guide, socket }, other] = [await begin(), await begin()];
  for (const each of [guide, guide, other.guide]) each.start({ max_tokens: 9 });
  const salts = [...socket.sent, ...other.socket.sent].filter((frame) => frame.t === "start").map(({ request }) => request.cache_salt);
  assert.equal(salts[0], salts[1]);
  assert.notEqual(salts[0], salts[2]);
});

test("a stop waits for tokens, for a pause and for the end", async () => {
  const { guide, socket } = await begin();
  const answer = guide.start({});
  const seen = [];
  answer.reaches(5).then(() => seen.push("five"));
  answer.pauses().then(() => seen.push("paused"));
  guide.all([answer]).then(() => seen.push("ended"));
  const settle = () => new Promise((resolve) => setImmediate(resolve));
  for (const [frame, expected] of [[delta("tour-1", 1, 4), ""], [delta("tour-1", 5, 1), "five"], [{ t: "paused", id: "tour-1" }, "five paused"],
    [{ t: "done", id: "tour-1" }, "five paused ended"]]) {
    socket.receive(frame);
    await settle();
    assert.equal(seen.join(" "), expected);
  }
});

test("who reads slowly grants no credit before it reads", async () => {
  const { guide, socket } = await begin();
  const answer = guide.start({}, { credit: 32 });
  assert.equal(socket.sent.at(-1).credit, 32);
  socket.receive(delta("tour-1", 1, 32));
  mock.timers.tick(1000);
  assert.equal(socket.sent.at(-1).t, "start");
  answer.read();
  mock.timers.tick(200);
  assert.deepEqual(socket.sent.at(-1), { t: "credit", id: "tour-1", upto: [64] });
});

test("a refused answer ends the stop, and so does a lost connection", async () => {
  const { guide, socket } = await begin();
  const answers = [guide.start({}), guide.start({})];
  const all = guide.all([answers[0]]);
  socket.receive({ t: "error", id: "tour-1", message: "The queue is full." });
  await assert.rejects(all, new TourEnded("The queue is full."));
  socket.onclose({ code: 1006 });
  await assert.rejects(guide.all([answers[1]]), TourEnded);
});

test("leaving cancels what is open and ends the stop", async () => {
  const { guide, socket } = await begin();
  const all = guide.all([guide.start({}), guide.start({})]);
  guide.close();
  await all;
  assert.deepEqual(socket.sent.filter((frame) => frame.t === "cancel").map(({ id }) => id), ["tour-1", "tour-2"]);
  assert.ok(socket.isClosed);
  assert.throws(() => guide.start({}), TourEnded);
});

test("who leaves waits until the server has ended what was open, and can ask again", async () => {
  const { guide, socket } = await begin();
  guide.start({});
  let hasLeft = false;
  const left = guide.leave().then(() => (hasLeft = true));
  await new Promise((resolve) => setImmediate(resolve));
  assert.deepEqual([socket.sent.at(-1), hasLeft], [{ t: "cancel", id: "tour-1" }, false]);
  socket.receive({ t: "done", id: "tour-1" });
  await left;
  guide.start({});
});

test("the ids of answers are known once the server has accepted them", async () => {
  const { guide, socket } = await begin();
  guide.start({});
  assert.deepEqual(guide.streams, []);
  socket.receive({ t: "accepted", id: "tour-1", stream: "chatcmpl-1" });
  socket.receive({ t: "done", id: "tour-1" });
  assert.deepEqual(guide.streams, ["chatcmpl-1"]);
});

test("more than eight at once are none of the tour's", async () => {
  const { guide } = await begin();
  for (let count = 0; count < 8; count++) guide.start({});
  assert.throws(() => guide.start({}), /8 answers/);
});

test("what a fast engine is done with is played again until so much time has passed, and then to its end", async () => {
  const { guide, socket } = await begin();
  const ends = [];
  const numbers = [];
  const played = guide.lasts(4000, (number) => numbers.push(number) && new Promise((resolve) => ends.push(resolve)));
  ends.at(-1)();
  await Promise.resolve().then(() => {});
  assert.equal(ends.length, 2);
  mock.timers.tick(4000);
  await Promise.resolve();
  ends.at(-1)();
  await played;
  assert.deepEqual(numbers, [1, 2]);
  assert.equal(socket.isClosed, false);
});
