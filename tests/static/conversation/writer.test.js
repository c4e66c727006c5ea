import assert from "node:assert/strict";
import test from "node:test";
import { begunAnswers } from "../../../app/static/conversation/begun.js";
import { Writer } from "../../../app/static/conversation/writer.js";
import { newAnswer } from "../../../app/static/tree/answer.js";

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
    cancel: (_id, position) => asked.push(["cancel", position]),
  };
  const listeners = { onChange: () => {}, onGrowth: () => {}, onEnd: (answer) => ended.push(answer), askForRest: () => ({}) };
  return { writer: new Writer(link, listeners), asked, ended };
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
    assert.deepEqual([asked[1], writer.answer], [["cancel", { stream: "s", after: [3] }], null]);
  }
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
