// The page's side of quire.v1 on one connection: its greeting, its open streams, and what it answers by itself.
// No socket here: frames of the server go in by `receive`, frames to send go out by the function `send`.

import { Stream } from "./stream.js";

export const PROTOCOL = "quire.v1";
// What the protocol allows without any credit, where a server does not tell.
const WINDOW = 256;

export class Protocol {
  /** The server's first frame. */
  welcome = null;
  /** Whether the server stops: it takes no new streams and closes once the open ones have ended. */
  isDraining = false;
  /** Those that have not ended, by the page's id. */
  streams = new Map();
  #send;

  /** @param {(frame: object) => void} send */
  constructor(send) {
    this.#send = send;
  }

  /** Say hello; a browser cannot set headers on a WebSocket, so the key goes here. */
  hello(key) {
    this.#send({ t: "hello", protocol: PROTOCOL, ...(key && { key }) });
  }

  /** Open a stream, after the welcome. */
  start(id, request) {
    const stream = new Stream(id, request.n ?? 1, this.welcome.limits.window ?? WINDOW);
    this.streams.set(id, stream);
    this.#send({ t: "start", id, request });
    return stream;
  }

  /** End a stream; without effect where none is open. */
  cancel(id) {
    const frame = this.streams.get(id)?.cancel();
    if (frame) this.#send(frame);
  }

  /**
   * Take one frame of the server.
   * @returns {Stream | null} the stream that it has changed
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

  /** Everything that has come is shown: give credit where it is time for it. */
  show(now) {
    for (const stream of this.streams.values()) {
      const frame = stream.show(now);
      if (frame) this.#send(frame);
    }
  }

  /** The connection has ended, and with it every open stream. */
  close() {
    for (const stream of this.streams.values()) stream.disconnect();
    this.streams.clear();
  }
}
