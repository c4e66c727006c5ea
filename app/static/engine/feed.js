// The connection to the engine's pictures: open while somebody looks, opened again when it was lost.
//
// A browser does not tell why a handshake failed. So the server is asked for its health: one that is ready has refused the
// view, or something on the way has; any other may be about to start again. One that loads its model accepts the connection,
// and has nothing to send until it is ready: it is asked then, too.

import { readHealth } from "../stream/server.js";

const PROTOCOL = "quire.live.v1";
const FIRST_RETRY_MS = 500;
const LAST_RETRY_MS = 8000;
// From the opening to the first message of a server that is ready, and much more.
const SILENT_MS = 3000;
// Close codes after which another attempt would fail too.
const CLOSE_UNAUTHENTICATED = 4401;
const CLOSES_FOR_GOOD = [1008, 4400, 4406];
const CLOSE_TOO_MANY = 4429;
// Of a WebSocket.
const CONNECTING = 0;
// Handshakes that fail one after the other though the server is ready: it may have become so after the first one.
const HIDDEN_AFTER = 2;

/**
 * @typedef {object} FeedHandlers
 * @property {(buffer: ArrayBuffer) => void} onMessage throws if it cannot read the message; then the connection begins anew
 * @property {(phase: "connecting" | "open" | "lost" | "starting" | "hidden" | "crowded" | "locked" | "refused") => void} onPhase
 *   lost: nobody answers; starting: the server answers that it is not ready; hidden: it is ready, and lets no view be opened;
 *   locked: the key is wrong; refused: the page is. After these two it is not tried again
 */

export class Feed {
  /** @type {WebSocket | null} */
  #socket = null;
  #key;
  #handlers;
  #numFailures = 0;
  #numRefused = 0;
  /** @type {any} */
  #timer = 0;
  /** @type {symbol | null} */
  #asking = null;
  #onVisibility = () => (document.hidden ? this.#leave() : this.#connect());

  /** Connect, unless the page is hidden: nobody looks at it then. @param {string | null} key @param {FeedHandlers} handlers */
  constructor(key, handlers) {
    this.#key = key;
    this.#handlers = handlers;
    document.addEventListener("visibilitychange", this.#onVisibility);
    if (!document.hidden) this.#connect();
  }

  /** End the connection for good. */
  close() {
    document.removeEventListener("visibilitychange", this.#onVisibility);
    this.#leave();
  }

  #connect() {
    if (this.#socket) return;
    clearTimeout(this.#timer);
    const url = new URL("/live", location.href);
    url.protocol = url.protocol.replace("http", "ws");
    const socket = new WebSocket(url, PROTOCOL);
    socket.binaryType = "arraybuffer";
    this.#socket = socket;
    this.#handlers.onPhase("connecting");
    // Browsers cannot set headers of a WebSocket.
    let hasOpened = false;
    socket.onopen = () => {
      hasOpened = true;
      this.#numRefused = 0;
      socket.send(JSON.stringify({ t: "hello", ...(this.#key && { key: this.#key }) }));
      this.#await();
    };
    socket.onmessage = ({ data }) => this.#receive(data);
    socket.onclose = ({ code }) => this.#lost(code, hasOpened);
  }

  /** Tell what keeps a server that has accepted the connection from sending, as long as nothing comes. */
  #await() {
    this.#timer = setTimeout(async () => {
      const status = await this.#ask();
      if (status === undefined) return;
      this.#handlers.onPhase(status === null ? "lost" : status === "ready" ? "connecting" : "starting");
      this.#await();
    }, SILENT_MS);
  }

  #receive(data) {
    this.#forget();
    try {
      this.#handlers.onMessage(data);
    } catch (error) {
      // A part of the picture is missing: the first message of a connection has all of it.
      console.warn(error);
      this.#leave();
      return this.#retry();
    }
    this.#numFailures = 0;
    return this.#handlers.onPhase("open");
  }

  #lost(code, hasOpened) {
    this.#socket = null;
    this.#forget();
    if (code === CLOSE_UNAUTHENTICATED) return this.#handlers.onPhase("locked");
    if (CLOSES_FOR_GOOD.includes(code)) return this.#handlers.onPhase("refused");
    if (!hasOpened) return this.#refused();
    this.#handlers.onPhase(code === CLOSE_TOO_MANY ? "crowded" : "lost");
    return this.#retry();
  }

  /** What the server is doing, null if nobody answers; undefined if nobody wants to know it any more. */
  async #ask() {
    const asking = (this.#asking = Symbol("asking"));
    const status = await readHealth().then((health) => health.status, () => null);
    return this.#asking === asking ? status : undefined;
  }

  /** Ask the server what it is doing, and try again. */
  async #refused() {
    const status = await this.#ask();
    // The view was closed or hidden.
    if (status === undefined) return;
    this.#numRefused = status === "ready" ? this.#numRefused + 1 : 0;
    const isStarting = status !== null && status !== "ready";
    this.#handlers.onPhase(this.#numRefused >= HIDDEN_AFTER ? "hidden" : isStarting ? "starting" : "lost");
    this.#retry();
  }

  #retry() {
    this.#numFailures += 1;
    const longest = Math.min(LAST_RETRY_MS, FIRST_RETRY_MS * 2 ** (this.#numFailures - 1));
    this.#timer = setTimeout(() => this.#connect(), longest * (0.5 + Math.random() / 2));
  }

  #forget() {
    clearTimeout(this.#timer);
    this.#asking = null;
  }

  #leave() {
    this.#forget();
    const socket = this.#socket;
    if (!socket) return;
    this.#socket = null;
    socket.onmessage = null;
    socket.onclose = null;
    // Closed before it is open, it would be an error on the browser's console.
    if (socket.readyState === CONNECTING) socket.onopen = () => socket.close();
    else socket.close();
  }
}
