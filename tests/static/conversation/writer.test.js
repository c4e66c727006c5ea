import assert from "node:assert/strict";
import test from "node:test";
import { begunAnswers } from "../../../app/static/conversation/begun.js";
import { Writer } from "../../../app/static/conversation/writer.js";
import { isCut, newAnswer } from "../../../app/static/tree/answer.js";

/** A writer, what it has asked its link for, and what it has ended. */
function makeWriter() {
  const asked = [];
  const ended = [];
  const open = (...what) => {
    asked.push(what);
    return { isAccepted: false, position: null };
  };
  const link = {
    isReady: true, canContinue: true, model: "guide",
    start: (id, request, key) => open("start", request, key), resume: (_id, position) => open("resume", position),
    cancel: (_id, stop) => asked.push(["cancel", stop]), delayAfter: (numAttempts) => 100 * numAttempts,
  };
  const listeners = { onChange: () => {}, onGrowth: () => {}, onEnd: (answers) => ended.push(...answers), askForRest: () => ({}) };
  return { writer: new Writer(link, listeners), link, asked, ended };
}

const makeAnswer = () => newAnswer("c", null, { messages: [] }, null, 1);

/** The server accepts the answer that a writer has asked for, and keeps it. */
function accept(writer, after) {
  const { stream } = writer.answer;
  Object.assign(stream, { isAccepted: true, position: { stream: "s", after: [after] } });
  writer.receive(stream, { t: "accepted" });
}

test("an answer that the server keeps is resumed with the next connection, whatever has ended the one before", () => {
  for (const code of [1000, 1006, 1009, 1012, 4401, 4409, 4429, 4499]) {
    const { writer, asked, ended } = makeWriter();
    writer.begin(makeAnswer());
    accept(writer, 3);
    writer.lose(code);
    assert.equal(writer.answer.stream, null);
    writer.connect();
    assert.deepEqual([asked[1], ended], [["resume", { stream: "s", after: [3] }], []], `closed with ${code}`);
  }
});

test("an answer whose page does not connect any more ends, also one that waits", () => {
  for (const code of [4400, 4406]) {
    const { writer, ended } = makeWriter();
    writer.begin(makeAnswer());
    accept(writer, 3);
    writer.lose(1006);
    writer.lose(1006);
    assert.deepEqual(ended, []);
    writer.lose(code);
    assert.deepEqual(ended.map(({ state, position }) => [state, position]), [["disconnected", undefined]]);
  }
});

test("an answer says whether the context has ended it or a limit of its own, and can be continued after either", () => {
  for (const [prompt, reason, finish] of [[993, "length", "context"], [992, "length", "length"], [993, "stop", "stop"]]) {
    const { writer, link, ended } = makeWriter();
    Object.assign(link, { details: { max_model_len: 1000 } });
    writer.begin(makeAnswer());
    const { stream } = writer.answer;
    writer.receive(stream, { t: "finish", i: 0, n: 7, finish_reason: reason });
    writer.receive(stream, { t: "done", usage: { prompt_tokens: prompt, completion_tokens: 7 } });
    assert.deepEqual([ended[0].finish, isCut(ended[0])], [finish, reason === "length"]);
  }
});

test("a request that was not accepted is sent again, unless it would end the next connection, too", () => {
  const { writer, asked, ended } = makeWriter();
  const answer = makeAnswer();
  writer.begin(answer);
  writer.lose(1006);
  writer.connect();
  assert.deepEqual(asked, [["start", { messages: [] }, answer.id], ["start", { messages: [] }, answer.id]]);
  writer.lose(1009);
  assert.deepEqual(ended.map(({ error }) => error), ["The message is too large for this server. Shorten it."]);
});

test("what the server has accepted and does not keep ends with its connection", () => {
  const { writer, ended } = makeWriter();
  writer.begin(makeAnswer());
  writer.answer.stream.isAccepted = true;
  writer.receive(writer.answer.stream, { t: "accepted" });
  writer.lose(1006);
  assert.deepEqual(ended.map(({ state }) => state), ["disconnected"]);
});

test("an answer is known as begun from when the server keeps it until it has ended", () => {
  const { writer } = makeWriter();
  const answer = makeAnswer();
  const begun = () => begunAnswers().filter(({ id }) => id === answer.id);
  writer.begin(answer);
  assert.deepEqual(begun(), []);
  accept(writer, 0);
  assert.deepEqual(begun(), [{ id: answer.id, conversation: "c" }]);
  writer.receive(answer.stream, { t: "done" });
  assert.deepEqual(begun(), []);
});

test("an answer that is stopped or deleted while it waits is ended on the server by its position", () => {
  for (const end of ["stop", "discard"]) {
    const { writer, asked } = makeWriter();
    writer.begin(makeAnswer());
    accept(writer, 3);
    writer.lose(1006);
    writer[end]();
    const stop = { position: { stream: "s", after: [3] } };
    assert.deepEqual([asked[1], writer.answer], [["cancel", stop], null]);
  }
});

test("an answer that is stopped before it was accepted is ended on the server by its request, also by another page", () => {
  for (const lose of [false, true]) {
    const { writer, asked } = makeWriter();
    writer.begin(makeAnswer());
    if (lose) writer.lose(1006);
    writer.stop();
    assert.deepEqual(asked[1], ["cancel", { request: { messages: [] } }]);
  }
  const { writer, link, asked } = makeWriter();
  link.isReady = false;
  writer.takeOver(Object.assign(makeAnswer(), { request: { messages: [] } }));
  writer.stop();
  assert.deepEqual(asked, [["cancel", { request: { messages: [] } }]]);
});

test("what was not sent, or ends with its connection, is ended once", () => {
  const { writer, link, asked } = makeWriter();
  link.isReady = false;
  writer.begin(makeAnswer());
  writer.stop();
  link.isReady = true;
  writer.begin(makeAnswer());
  writer.answer.stream.isAccepted = true;
  writer.receive(writer.answer.stream, { t: "accepted" });
  writer.stop();
  assert.deepEqual(asked.filter(([what]) => what === "cancel"), [["cancel", null], ["cancel", null]]);
});

test("an answer with too many readers is asked for again, later each time, until one of them has gone", (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const { writer, asked, ended } = makeWriter();
  const refuse = () => {
    const { stream, position } = writer.answer;
    stream.position = position;
    writer.receive(stream, { t: "error", code: "rate_limit_exceeded", message: "8 readers read this stream." });
  };
  writer.begin(makeAnswer());
  accept(writer, 3);
  writer.lose(1006);
  writer.connect();
  for (const [number, ms] of [100, 200, 300].entries()) {
    refuse();
    assert.deepEqual([writer.answer.stream, writer.answer.numRefused], [null, number + 1]);
    t.mock.timers.tick(ms - 1);
    assert.equal(asked.length, number + 2);
    t.mock.timers.tick(1);
    assert.deepEqual(asked[number + 2], ["resume", { stream: "s", after: [3] }]);
  }
  accept(writer, 3);
  assert.deepEqual([writer.answer.numRefused, ended], [0, []]);
});

test("a question that is refused for a limit has failed", () => {
  const { writer, asked, ended } = makeWriter();
  writer.begin(makeAnswer());
  writer.receive(writer.answer.stream, { t: "error", code: "rate_limit_exceeded", message: "32 streams are open." });
  assert.deepEqual([asked.length, ended.map(({ state, error }) => [state, error])], [1, [["failed", "32 streams are open."]]]);
});

test("an answer that another page has begun goes on with its figures", () => {
  const { writer, asked } = makeWriter();
  const figures = { tokens: 5, firstTokenMs: 300, waitedMs: 300, rate: 7 };
  const position = { stream: "s", after: [5] };
  writer.takeOver({ id: "a", conversation: "c", text: "Half", state: "streaming", figures, position, version: 0 });
  assert.deepEqual(asked, [["resume", position]]);
  const { tokens, firstTokenMs } = writer.answer.watch.read(performance.now());
  assert.deepEqual([tokens, Math.round(firstTokenMs)], [5, 300]);
});

test("an answer that another tab has stopped is shown as stopped", () => {
  const { writer, ended } = makeWriter();
  writer.begin(makeAnswer());
  writer.receive(writer.answer.stream, { t: "error", code: "stream_cancelled", message: "It was cancelled." });
  assert.deepEqual(ended.map(({ state, error }) => [state, error]), [["stopped", undefined]]);
});

test("what the server cannot give the rest of is interrupted, whatever the reason", () => {
  const refusals = [
    { code: "stream_not_found" }, { code: "invalid_value", param: "after" }, { code: "idempotency_conflict" },
  ];
  for (const refusal of refusals) {
    const { writer, ended } = makeWriter();
    writer.begin(makeAnswer());
    writer.receive(writer.answer.stream, { t: "error", message: "For a program.", ...refusal });
    assert.deepEqual(ended.map(({ state }) => state), ["interrupted"]);
    assert.doesNotMatch(ended[0].error, /program/);
  }
});
