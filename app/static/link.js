// Keeps the page connected: waits for the model, reads its name, asks for the key, opens the socket, and starts again
// when the connection is lost. One loop, one phase at a time:
//
//   connecting -> loading -> (locked) -> ready -> (draining) -> offline -> ...
//
// failed and stale need an operator. While draining, the server finishes open answers and rejects new ones.

import { forgetKey, keepKey, readKey } from "./key.js";
import { readHealth, readModel } from "./server.js";
import { Socket } from "./socket.js";

const LOADING_POLL_MS = 300;
const FAILED_POLL_MS = 3000;
const FIRST_RETRY_MS = 500;
const LAST_RETRY_MS = 8000;

// Close codes after which another attempt would fail too.
const CLOSE_UNAUTHENTICATED = 4401;
const CLOSE_PROTOCOL_ERRORS = [4400, 4406];

export class Link {
  phase = { name: "connecting" };
  model = null;
  #socket = null;
  #handlers;
  #retries = 0;
  #wake = null;
  #unlock = null;

  /**
   * @param {{onPhase: () => void, onFrame: (stream: Stream, frame: object) => void, onLost: (code: number) => void}}
   *   handlers `onFrame` gets each frame that has changed an open stream; `onLost` the close code.
   */
  constructor(handlers) {
    this.#handlers = handlers;
    addEventListener("online", () => this.#wake?.());
  }

  /** Connect, and reconnect until the page is closed. */
  async run() {
    while (this.phase.name !== "stale") {
      const delayMs = await this.#attempt().catch(() => {
        this.#enter({ name: "offline" });
        return this.#retryDelay();
      });
      await this.#pause(delayMs);
    }
  }

  get isReady() {
    return this.phase.name === "ready";
  }

  /** Whether the server is shutting down: a new question waits for the next connection. */
  get isDraining() {
    return this.phase.name === "draining";
  }

  /** Open a stream, while ready; its frames are passed to `onFrame`. */
  start(id, request) {
    return this.#socket.start(id, request);
  }

  /** Ask the server to end a stream. */
  cancel(id) {
    this.#socket?.cancel(id);
  }

  /** All received text is shown: grant the server credit for more. */
  show() {
    this.#socket?.show();
  }

  /** Try the key that the user has entered. */
  unlock(key) {
    keepKey(key);
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
    const key = readKey();
    const { model, rejected } = await readModel(key);
    if (rejected) {
      await this.#askForKey(Boolean(key));
      return 0;
    }
    this.model = model;
    return this.#afterClose(await this.#converse(key));
  }

  async #askForKey(wasRejected) {
    forgetKey();
    this.#enter({ name: "locked", wasRejected });
    await new Promise((resolve) => {
      this.#unlock = resolve;
    });
  }

  async #converse(key) {
    const { onFrame, onLost } = this.#handlers;
    const onDraining = () => this.#enter({ name: "draining" });
    this.#socket = new Socket(key, { onWelcome: () => this.#welcomed(), onDraining, onFrame });
    const code = await this.#socket.closed;
    this.#socket = null;
    onLost(code);
    return code;
  }

  #welcomed() {
    this.#retries = 0;
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
    return this.#retryDelay();
  }

  /** Full jitter: pages that lost the same server do not reconnect at the same time. */
  #retryDelay() {
    const ceiling = Math.min(LAST_RETRY_MS, FIRST_RETRY_MS * 2 ** this.#retries);
    this.#retries += 1;
    return Math.random() * ceiling;
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
