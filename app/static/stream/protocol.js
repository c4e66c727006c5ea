// The page's side of quire.v1 on one connection: the handshake, the open streams, and answers to pings.
// Without a socket: `receive` takes frames of the server, and the function `send` gets the frames to send.

import { Stream } from "./stream.js";

export const PROTOCOL = "quire.v1";
// Tokens that the protocol allows without credit; used if the server's welcome has no window.
const WINDOW = 256;
/** How long the server keeps an answer that nobody reads. Over HTTP it is always that long. */
export const TTL_S = 300;

export class Protocol {
  /** The server's first frame. */
  welcome = null;
  /** Whether the server is shutting down: it accepts no new streams, and closes after the open ones. */
  isDraining = false;
  /** The open streams, by the page's id. */
  streams = new Map();
  #send;

  /** @param {(frame: object) => void} send */
  constructor(send) {
    this.#send = send;
  }

  /** Send `hello`, with the key, because a browser cannot set headers of a WebSocket. */
  hello(key) {
    this.#send({ t: "hello", protocol: PROTOCOL, ...(key && { key }) });
  }

  /**
   * Open a stream, after the welcome.
   * @param {string} id
   * @param {Record<string, any>} request
   * @param {string | null} key makes the server keep the answer: it outlives the connection, and a request that is sent
   *   again with the same key is the same answer
   * @param {number | null} credit tokens of each choice that may be received before they are shown; usually the server's window
   */
  start(id, request, key = null, credit = null) {
    const ttl_s = Math.min(TTL_S, this.welcome.limits.ttl_s ?? 0);
    const keeping = key && ttl_s ? { ttl_s, idempotency_key: key } : {};
    const after = Array(request.n ?? 1).fill(0);
    return this.#open(id, after, { t: "start", id, request, ...keeping, ...(credit && { credit }) }, null, credit);
  }

  /**
   * Open the rest of a stream that the server keeps, after the welcome.
   * @param {string} id
   * @param {import("./stream.js").Position} position
   */
  resume(id, position) {
    const { stream, after } = position;
    return this.#open(id, after, { t: "resume", id, stream, after }, stream);
  }

  /** End a stream. Returns whether it was open. */
  cancel(id) {
    const stream = this.streams.get(id);
    const frame = stream?.cancel();
    if (frame) this.#send(frame);
    return Boolean(stream);
  }

  /**
   * Process one frame of the server.
   * @returns {Stream | null} the stream that has changed
   */
  receive(frame) {
    const stream = this.streams.get(frame.id);
    if (frame.t === "welcome") this.welcome = frame;
    else if (frame.t === "ping") this.#send({ t: "pong", ts: frame.ts });
    else if (frame.t === "draining") this.isDraining = true;
    else if (stream?.receive(frame)) {
      if (stream.isOver) this.streams.delete(stream.id);
      return stream;
    }
    return null;
  }

  /** Mark all received text as shown, and send the credit that is due. */
  show(now) {
    for (const stream of this.streams.values()) {
      const frame = stream.show(now);
      if (frame) this.#send(frame);
    }
  }

  /** End all open streams, because the connection has ended. */
  close() {
    for (const stream of this.streams.values()) stream.disconnect();
    this.streams.clear();
  }

  #open(id, after, frame, kept = null, credit = null) {
    const stream = new Stream(id, after, credit ?? this.welcome.limits.window ?? WINDOW, kept);
    this.streams.set(id, stream);
    this.#send(frame);
    return stream;
  }
}
