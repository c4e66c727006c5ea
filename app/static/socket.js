// One connection that speaks quire.v1: hello and welcome, the heartbeat, and JSON frames in between.
// The link is dead after two heartbeats of silence; a browser does not see protocol pings.

const PROTOCOL = "quire.v1";

export class Socket {
  #socket;
  #timer = null;
  #heardAt = performance.now();
  #closed;

  /**
   * @param {string | null} key sent in `hello`: a browser cannot set headers on a WebSocket
   * @param {{onWelcome: () => void, onFrame: (frame: object) => void}} handlers
   */
  constructor(key, handlers) {
    const url = new URL("/ws", location.href);
    url.protocol = url.protocol.replace("http", "ws");
    this.#socket = new WebSocket(url, PROTOCOL);
    this.#socket.onopen = () => this.send({ t: "hello", protocol: PROTOCOL, ...(key && { key }) });
    this.#socket.onmessage = (event) => this.#receive(JSON.parse(event.data), handlers);
    /** Resolves with the close code, once. */
    this.closed = new Promise((resolve) => {
      this.#closed = resolve;
    });
    this.#socket.onclose = (event) => this.#end(event.code);
  }

  /** Send one frame; without effect when the socket is not open. */
  send(frame) {
    if (this.#socket.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify(frame));
  }

  /** Give the connection up without waiting for the other side. */
  close() {
    this.#socket.close();
    this.#end(1000);
  }

  #receive(frame, { onWelcome, onFrame }) {
    this.#heardAt = performance.now();
    if (frame.t === "welcome") {
      this.#timer = setInterval(() => this.#beat(frame.heartbeat_ms), frame.heartbeat_ms);
      onWelcome();
    } else if (frame.t === "ping") {
      this.send({ t: "pong", ts: frame.ts });
    } else if (frame.t !== "pong") {
      onFrame(frame);
    }
  }

  #beat(heartbeatMs) {
    if (performance.now() - this.#heardAt > 2 * heartbeatMs) this.close();
    else this.send({ t: "ping", ts: Date.now() });
  }

  #end(code) {
    clearInterval(this.#timer);
    this.#socket.onmessage = null;
    this.#closed(code);
  }
}
