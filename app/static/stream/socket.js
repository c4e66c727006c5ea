// One connection of quire.v1 over a WebSocket, with heartbeats: pages cannot see pings of the WebSocket protocol.
// The connection is dead if nothing was received for two heartbeats.

import { PROTOCOL, Protocol } from "./protocol.js";

/** Close code of a connection that was lost. */
export const CLOSE_LOST = 1006;
// A proxy may swallow the upgrade, or all frames after it.
const WELCOME_MS = 10_000;
// How long a ping may take after a sleep or a change of network, which leave connections that nobody ends.
const CHECK_MS = 5000;

export class Socket {
  #socket;
  #protocol = new Protocol((frame) => this.#send(frame));
  /** Waits for the welcome, then for the next heartbeat. @type {any} */
  #timer = setTimeout(() => this.#abandon(CLOSE_LOST), WELCOME_MS);
  #heardAt = performance.now();
  #closed;

  /**
   * @param {string | null} key
   * @param {import("./handler_types.js").SocketHandlers} handlers
   */
  constructor(key, handlers) {
    const url = new URL("/ws", location.href);
    url.protocol = url.protocol.replace("http", "ws");
    this.#socket = new WebSocket(url, PROTOCOL);
    this.#socket.onopen = () => this.#protocol.hello(key);
    this.#socket.onmessage = (event) => this.#receive(JSON.parse(event.data), handlers);
    /** Resolves with the close code, once. */
    this.closed = new Promise((resolve) => {
      this.#closed = resolve;
    });
    this.#socket.onclose = (event) => this.#end(event.code);
  }

  /** Open a stream, which the server keeps if it has a `key`; `credit` as in protocol.js. */
  start(id, request, key, credit = null) {
    return this.#protocol.start(id, request, key, credit);
  }

  /** Open the rest of a stream that the server keeps. */
  resume(id, position) {
    return this.#protocol.resume(id, position);
  }

  /** End a stream. Returns whether it was open. */
  cancel(id) {
    return this.#protocol.cancel(id);
  }

  /** End the connection unless the server answers soon. */
  check() {
    if (!this.#protocol.welcome) return;
    const askedAt = performance.now();
    this.#send({ t: "ping", ts: Date.now() });
    setTimeout(() => this.#heardAt < askedAt && this.#abandon(CLOSE_LOST), CHECK_MS);
  }

  /** End the connection, with all its streams. */
  close() {
    this.#abandon(CLOSE_LOST);
  }

  /** All received text is shown. */
  show() {
    this.#protocol.show(performance.now());
  }

  /** End the connection without waiting for the server. */
  #abandon(code) {
    this.#socket.close();
    this.#end(code);
  }

  /** Without effect if the socket is not open. */
  #send(frame) {
    if (this.#socket.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify(frame));
  }

  #receive(frame, { onWelcome, onDraining, onFrame }) {
    this.#heardAt = performance.now();
    const stream = this.#protocol.receive(frame);
    if (stream) onFrame(stream, frame);
    else if (frame.t === "welcome") {
      clearTimeout(this.#timer);
      this.#timer = setInterval(() => this.#beat(frame.heartbeat_ms), frame.heartbeat_ms);
      onWelcome();
    } else if (frame.t === "draining") onDraining();
    // A hidden tab is not rendered, and its timers may fire once a minute, but messages arrive in time. Therefore all
    // received text counts as shown in a hidden tab; otherwise the answer would pause.
    if (document.hidden) this.show();
  }

  #beat(heartbeatMs) {
    if (performance.now() - this.#heardAt > 2 * heartbeatMs) this.#abandon(CLOSE_LOST);
    else this.#send({ t: "ping", ts: Date.now() });
  }

  #end(code) {
    clearInterval(this.#timer);
    this.#socket.onmessage = null;
    this.#protocol.close();
    this.#closed(code);
  }
}
