// The connection to the engine's pictures: open while somebody looks, opened again when it was lost.

const PROTOCOL = "quire.live.v1";
const FIRST_RETRY_MS = 500;
const LAST_RETRY_MS = 8000;
// Close codes after which another attempt would fail too.
const CLOSES_FOR_GOOD = [1008, 4400, 4401, 4406];
const CLOSE_TOO_MANY = 4429;
// Of a WebSocket.
const CONNECTING = 0;
// A browser does not tell why a handshake was refused.
const HIDDEN_AFTER = 2;

/**
 * @typedef {object} FeedHandlers
 * @property {(buffer: ArrayBuffer) => void} onMessage throws if it cannot read the message; then the connection begins anew
 * @property {(phase: "connecting" | "open" | "lost" | "hidden" | "crowded" | "refused") => void} onPhase hidden: no connection
 *   was opened at all; refused: it is not tried again
 */

export class Feed {
  /** @type {WebSocket | null} */
  #socket = null;
  #key;
  #handlers;
  #numFailures = 0;
  #hasOpened = false;
  /** @type {any} */
  #timer = 0;
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
    socket.onopen = () => {
      this.#hasOpened = true;
      socket.send(JSON.stringify({ t: "hello", ...(this.#key && { key: this.#key }) }));
    };
    socket.onmessage = ({ data }) => this.#receive(data);
    socket.onclose = ({ code }) => this.#lost(code);
  }

  #receive(data) {
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

  #lost(code) {
    this.#socket = null;
    if (CLOSES_FOR_GOOD.includes(code)) return this.#handlers.onPhase("refused");
    const wasRefused = !this.#hasOpened && this.#numFailures + 1 >= HIDDEN_AFTER;
    this.#handlers.onPhase(code === CLOSE_TOO_MANY ? "crowded" : wasRefused ? "hidden" : "lost");
    return this.#retry();
  }

  #retry() {
    this.#numFailures += 1;
    const longest = Math.min(LAST_RETRY_MS, FIRST_RETRY_MS * 2 ** (this.#numFailures - 1));
    this.#timer = setTimeout(() => this.#connect(), longest * (0.5 + Math.random() / 2));
  }

  #leave() {
    clearTimeout(this.#timer);
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
