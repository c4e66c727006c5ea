// Makes the requests of the tour, on a connection of its own: none of their answers gets into a conversation.

import { Socket } from "../stream/socket.js";
import { newId } from "../tree/records.js";

const MOST_AT_ONCE = 8;
// As often as the protocol grants credit.
const READ_MS = 100;

/** What has ended the requests of a stop before their end. */
export class TourEnded extends Error {}

export class TourGuide {
  #socket;
  #welcome;
  /** @type {Map<string, TourAnswer>} */
  #open = new Map();
  #numStarted = 0;
  /** @type {string[]} */
  #streams = [];
  /** The tour finds in the cache what it has computed itself, and nothing else. */
  #salt = newId();
  #isOver = false;
  #reading = setInterval(() => [...this.#open.values()].every(({ isRead }) => isRead) && this.#socket.show(), READ_MS);

  /** @param {string | null} key */
  constructor(key) {
    this.#welcome = new Promise((resolve, reject) => {
      this.#socket = new Socket(key, {
        onWelcome: () => resolve(undefined),
        onDraining: () => this.#fail("The server is shutting down."),
        onFrame: (stream, frame) => this.#receive(stream, frame),
      });
      this.#socket.closed.then(() => reject(new TourEnded("The connection is lost.")));
    });
    this.#socket.closed.then(() => this.#fail("The connection is lost."));
  }

  /** Resolves when the server has accepted the connection. */
  get welcome() {
    return this.#welcome;
  }

  /**
   * Begin an answer, after the welcome.
   * @param {Record<string, any>} request
   * @param {{credit?: number}} [reader] who reads nothing after so many tokens, until the answer is read; else all is read at once
   * @returns {TourAnswer}
   */
  start(request, { credit = 0 } = {}) {
    if (this.#isOver) throw new TourEnded("The stop has ended.");
    if (this.#open.size >= MOST_AT_ONCE) throw new Error(`The tour has ${MOST_AT_ONCE} answers open already.`);
    const id = `tour-${++this.#numStarted}`;
    const answer = new TourAnswer(!credit);
    this.#open.set(id, answer);
    this.#socket.start(id, { ...request, cache_salt: this.#salt }, null, credit || null);
    return answer;
  }

  /** Resolves when answers have ended. @param {TourAnswer[]} answers */
  async all(answers) {
    await Promise.all(answers.map(({ ended }) => ended));
  }

  /** Let the viewer look. @param {number} ms */
  rest(ms) {
    return new Promise((resolve) => setTimeout(resolve, ms));
  }

  /**
   * Play again and again, and to the end, until so much time has passed: a fast engine is done before anybody has looked.
   * @param {number} ms
   * @param {(number: number) => Promise<void>} play gets 1 the first time, then 2 and so on
   */
  async lasts(ms, play) {
    let isOver = false;
    this.rest(ms).then(() => {
      isOver = true;
    });
    let number = 0;
    do await play(++number);
    while (!isOver);
  }

  /** Cancel all answers that are open. Resolves when the server has ended them. */
  async leave() {
    const answers = [...this.#open.values()];
    this.#cancel();
    await Promise.allSettled(answers.map(({ ended }) => ended));
  }

  /** The server's ids of all answers that it has accepted. */
  get streams() {
    return [...this.#streams];
  }

  /** End all answers, and the connection. */
  close() {
    this.#cancel();
    for (const answer of this.#open.values()) answer.end();
    this.#open.clear();
    this.#isOver = true;
    clearInterval(this.#reading);
    this.#socket.close();
  }

  #cancel() {
    for (const id of this.#open.keys()) this.#socket.cancel(id);
  }

  #receive(stream, frame) {
    if (frame.t === "accepted") this.#streams.push(frame.stream);
    const answer = this.#open.get(stream.id);
    if (!answer) return;
    answer.receive(stream, frame);
    if (stream.isOver) this.#open.delete(stream.id);
  }

  #fail(text) {
    for (const answer of this.#open.values()) answer.fail(new TourEnded(text));
    this.#open.clear();
  }
}

class TourAnswer {
  /** Whether what comes is read at once. */
  isRead;
  /** Resolves when the answer has ended. @type {Promise<void>} */
  ended;
  #end;
  #fail;
  #numTokens = 0;
  /** @type {{isDue: (state: string) => boolean, resolve: (value?: any) => void}[]} */
  #waiting = [];

  /** @param {boolean} isRead */
  constructor(isRead) {
    this.isRead = isRead;
    this.ended = new Promise((resolve, reject) => {
      this.#end = resolve;
      this.#fail = reject;
    });
    // Who waits for something else is told there.
    this.ended.catch(() => {});
  }

  /** Resolves when the answer has so many tokens, or has ended. @param {number} numTokens */
  reaches(numTokens) {
    return this.#until(() => this.#numTokens >= numTokens);
  }

  /** Resolves when the server has paused the answer, or it has ended. */
  pauses() {
    return this.#until((state) => state === "paused");
  }

  /** Read what has come, and from now on what comes. */
  read() {
    this.isRead = true;
  }

  receive(stream, frame) {
    if (frame.t === "delta") this.#numTokens += frame.k;
    if (stream.state === "error") return this.fail(new TourEnded(frame.message));
    if (stream.isOver) this.end();
    for (const each of this.#waiting) if (each.isDue(stream.state)) each.resolve();
    return undefined;
  }

  end() {
    this.#end();
  }

  fail(error) {
    this.#fail(error);
  }

  #until(isDue) {
    return Promise.race([new Promise((resolve) => this.#waiting.push({ isDue, resolve })), this.ended]);
  }
}
