// Keeps the page connected: waits for the model, reads its name, asks for the key, opens the socket, and starts again
// when the connection is lost. One loop, one phase at a time:
//
//   connecting -> loading -> (locked) -> ready -> (draining) -> offline -> ...
//
// failed and stale need an operator. While draining, the server finishes open answers and rejects new ones.

import { tabStorage } from "../store/web_storage.js";
import { readHealth, readModel } from "./server.js";
import { CLOSE_LOST, Socket } from "./socket.js";
import { Stops } from "./stops.js";

// The API key is stored in this tab's sessionStorage only: not in a URL, not on disk.
const KEY = "quire.key";
// It was trained on questions about Quire only.
const EMBEDDED_MODEL = "guide";
const SLOW_MS = 2000;
const LOADING_POLL_MS = 300;
const FAILED_POLL_MS = 3000;
const FIRST_RETRY_MS = 500;
const LAST_RETRY_MS = 8000;

// A WebSocket that closes so without a welcome, although the server answers, was blocked on its way. After 4408 the server
// got no hello.
const CLOSES_OF_BLOCKED = [CLOSE_LOST, 4408];
const BLOCKED_AFTER = 2;
// Close codes after which another attempt would fail too.
const CLOSE_UNAUTHENTICATED = 4401;
const CLOSE_PROTOCOL_ERRORS = [4400, 4406];
// The server has got too many messages: it is left alone for the longest delay.
const CLOSE_TOO_MANY = 4429;

export class Link {
  /** @type {import("./handler_types.js").Phase} */
  phase = { name: "connecting" };
  model = null;
  /** The model's entry of /v1/models. @type {Record<string, any>} */
  details = {};
  /** Whether the server continues answers; false once it has refused. */
  canContinue = true;
  #socket = null;
  #handlers;
  #retries = 0;
  #numBlocked = 0;
  #wake = null;
  #unlock = null;
  #stops = new Stops();

  /** @param {import("./handler_types.js").LinkHandlers} handlers */
  constructor(handlers) {
    this.#handlers = handlers;
    // After a sleep or a change of network a connection may be there no more, and nobody tells.
    const look = () => {
      this.#wake?.();
      this.#socket?.check();
    };
    addEventListener("online", look);
    addEventListener("visibilitychange", () => document.hidden || look());
  }

  /** Connect, and reconnect until the page is closed. */
  async run() {
    setTimeout(() => this.phase.name === "connecting" && this.#enter({ name: "connecting", isSlow: true }), SLOW_MS);
    while (this.phase.name !== "stale") {
      const delayMs = await this.#attempt().catch(() => {
        this.#enter({ name: "offline" });
        return this.#retryDelay();
      });
      await this.#pause(delayMs);
    }
  }

  /** The key that the user has entered, if the server asks for one. @returns {string | null} */
  get key() {
    return tabStorage.get(KEY);
  }

  get isReady() {
    return this.phase.name === "ready";
  }

  /** Whether the server is shutting down: a new question waits for the next connection. */
  get isDraining() {
    return this.phase.name === "draining";
  }

  /** Whether the model answers questions of any kind. */
  get answersAnything() {
    return this.model !== EMBEDDED_MODEL;
  }

  /**
   * Open a stream, while ready; its frames are passed to `onFrame`.
   * @param {string} id
   * @param {object} request
   * @param {string | null} key of an answer that outlives the connection, see protocol.js
   */
  start(id, request, key = null) {
    return this.#socket.start(id, request, key);
  }

  /** Open the rest of a stream that the server keeps, while ready. @param {import("./stream.js").Position} position */
  resume(id, position) {
    return this.#socket.resume(id, position);
  }

  /**
   * Ask the server to end a stream.
   * @param {string} id
   * @param {import("./stops.js").Stop | null} [stop] of one that goes on without a connection: the server is asked again by
   *   the next one, until it has answered
   */
  cancel(id, stop = null) {
    if (stop) this.#stops.add(id, stop);
    if (!this.#socket || !(this.isReady || this.isDraining)) return;
    if (!this.#socket.cancel(id)) this.#stops.tell(id, this.#socket, tabStorage.get(KEY));
  }

  /** The milliseconds to wait before the next attempt, after so many in vain. Full jitter: pages do not come back together. */
  delayAfter(numAttempts) {
    return Math.random() * Math.min(LAST_RETRY_MS, FIRST_RETRY_MS * 2 ** (numAttempts - 1));
  }

  /** All received text is shown: grant the server credit for more. */
  show() {
    this.#socket?.show();
  }

  /** Try the key that the user has entered. */
  unlock(key) {
    tabStorage.set(KEY, key);
    this.#unlock?.();
  }

  /** Go through the phases once. Returns the milliseconds to wait before the next attempt. */
  async #attempt() {
    const health = await readHealth();
    if (health.status === "loading") {
      this.#enter({ name: "loading", progress: health.progress });
      return LOADING_POLL_MS;
    }
    if (health.status === "draining") {
      this.#enter({ name: "draining" });
      return this.#retryDelay();
    }
    if (health.status !== "ready") {
      this.#enter({ name: health.status === "failed" ? "failed" : "offline", message: health.message });
      return FAILED_POLL_MS;
    }
    const key = tabStorage.get(KEY);
    const { model, details, rejected } = await readModel(key);
    if (rejected) {
      await this.#askForKey(Boolean(key));
      return 0;
    }
    this.model = model;
    this.details = details;
    return this.#afterClose(await this.#converse(key));
  }

  async #askForKey(wasRejected) {
    tabStorage.remove(KEY);
    this.#enter({ name: "locked", wasRejected });
    await new Promise((resolve) => {
      this.#unlock = resolve;
    });
  }

  async #converse(key) {
    const { onLost } = this.#handlers;
    const onFrame = (stream, frame) => {
      if (stream.isOver) this.#stops.settle(stream.id);
      this.#handlers.onFrame(stream, frame);
    };
    const onDraining = () => this.#enter({ name: "draining" });
    const handlers = { onWelcome: () => this.#welcomed(), onDraining, onFrame };
    const isBlocked = this.#numBlocked >= BLOCKED_AFTER;
    const Connection = isBlocked ? (await import("./http_connection.js")).HttpConnection : Socket;
    this.#socket = new Connection(key, handlers);
    const code = await this.#socket.closed;
    this.#socket = null;
    // After a connection over HTTP, WebSockets are tried once more.
    const hadWelcome = this.phase.name === "ready" || this.phase.name === "draining";
    if (isBlocked) this.#numBlocked = BLOCKED_AFTER - 1;
    else this.#numBlocked = CLOSES_OF_BLOCKED.includes(code) && !hadWelcome ? this.#numBlocked + 1 : 0;
    onLost(code);
    return code;
  }

  #welcomed() {
    this.#retries = 0;
    this.#stops.tellAll(this.#socket, tabStorage.get(KEY));
    this.#enter({ name: "ready" });
  }

  async #afterClose(code) {
    if (code === CLOSE_UNAUTHENTICATED) {
      await this.#askForKey(true);
      return 0;
    }
    if (CLOSE_PROTOCOL_ERRORS.includes(code)) {
      this.#enter({ name: "stale" });
      return 0;
    }
    this.#enter({ name: "offline" });
    return code === CLOSE_TOO_MANY ? LAST_RETRY_MS : this.#retryDelay();
  }

  #retryDelay() {
    this.#retries += 1;
    return this.delayAfter(this.#retries);
  }

  #pause(ms) {
    return new Promise((resolve) => {
      this.#wake = resolve;
      setTimeout(resolve, ms);
    });
  }

  #enter(phase) {
    this.phase = phase;
    this.#handlers.onPhase();
  }
}
