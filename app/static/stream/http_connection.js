// What a Socket does, by HTTP requests: for networks that block WebSockets. One request for each stream, whose
// server-sent events become frames of quire.v1.

import { readEvents } from "./event_source.js";
import { readHealth } from "./server.js";
import { Stream } from "./stream.js";

const CLOSE_LOST = 1006;
const CLOSE_RESTART = 1012;
const CLOSE_UNAUTHENTICATED = 4401;
// While nothing is asked, nothing else would tell that the server is gone.
const HEARTBEAT_MS = 15_000;

export class HttpConnection {
  /** @type {Map<string, {stream: Stream, abort: AbortController}>} */
  #open = new Map();
  #key;
  #isDraining = false;
  #onDraining;
  #onFrame;
  #closed;
  #timer = setInterval(() => this.#open.size || readHealth().catch(() => this.#end(CLOSE_LOST)), HEARTBEAT_MS);

  /**
   * @param {string | null} key
   * @param {import("./handler_types.js").SocketHandlers} handlers
   */
  constructor(key, { onWelcome, onDraining, onFrame }) {
    this.#key = key;
    this.#onDraining = onDraining;
    this.#onFrame = onFrame;
    /** Resolves with a close code, once. */
    this.closed = new Promise((resolve) => {
      this.#closed = resolve;
    });
    queueMicrotask(onWelcome);
  }

  /** Open a stream. */
  start(id, request) {
    const stream = new Stream(id, request.n ?? 1, Infinity);
    const abort = new AbortController();
    this.#open.set(id, { stream, abort });
    this.#run(stream, request, abort.signal).catch(() => !abort.signal.aborted && this.#end(CLOSE_LOST));
    return stream;
  }

  /** End a stream. */
  cancel(id) {
    this.#open.get(id)?.abort.abort();
    this.#open.delete(id);
    this.#endIfDrained();
  }

  /** The network itself slows the server down. */
  show() {}

  async #run(stream, request, signal) {
    const response = await fetch("/v1/chat/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json", ...(this.#key && { Authorization: `Bearer ${this.#key}` }) },
      body: JSON.stringify({
        ...request,
        stream: true,
        stream_options: { include_usage: true, continuous_usage_stats: true },
      }),
      signal,
    });
    if (!response.ok) return this.#refuse(stream, (await response.json()).error, response.status);
    const reader = new ChunkReader();
    for await (const data of readEvents(response.body)) {
      if (data === "[DONE]") return this.#receive(stream, { t: "done", usage: reader.usage });
      const chunk = JSON.parse(data);
      if (chunk.error) return this.#refuse(stream, chunk.error, 500);
      for (const frame of reader.read(chunk)) this.#receive(stream, frame);
    }
    this.#end(CLOSE_LOST);
  }

  #refuse(stream, { code, message, param }, status) {
    this.#receive(stream, { t: "error", code, message, param, status });
    if (status === 401) this.#end(CLOSE_UNAUTHENTICATED);
    else if (code === "draining") this.#drain();
  }

  /** As a socket: answers that are open may end, then the connection does. */
  #drain() {
    this.#isDraining = true;
    this.#onDraining();
    this.#endIfDrained();
  }

  #endIfDrained() {
    if (this.#isDraining && !this.#open.size) this.#end(CLOSE_RESTART);
  }

  #receive(stream, frame) {
    if (!stream.receive({ ...frame, id: stream.id })) return;
    if (stream.isOver) this.#open.delete(stream.id);
    this.#onFrame(stream, frame);
    this.#endIfDrained();
  }

  #end(code) {
    clearInterval(this.#timer);
    for (const { stream, abort } of this.#open.values()) {
      abort.abort();
      stream.disconnect();
    }
    this.#open.clear();
    this.#closed(code);
  }
}

/** Turns OpenAI's chunks into frames of quire.v1. */
export class ChunkReader {
  /** The last `usage`. @type {any} */
  usage = undefined;
  /** Number of the last token of each choice. */
  #last = new Map();

  /** @returns {object[]} */
  read({ choices, usage }) {
    const before = this.usage?.completion_tokens ?? 0;
    if (usage) this.usage = usage;
    return (choices ?? []).flatMap(({ index: i, delta, finish_reason: reason, stop_reason: why }) => {
      const frames = [];
      const n = (this.#last.get(i) ?? 0) + 1;
      const r = delta?.reasoning_content;
      const tool = delta?.tool_calls?.flatMap(toPieces);
      if (delta?.content || r || tool?.length) {
        // Without counts each chunk is taken for one token.
        const k = Math.max(1, usage ? usage.completion_tokens - before : 1);
        this.#last.set(i, n + k - 1);
        frames.push({ t: "delta", i, n, k, x: delta.content ?? "", ...(r && { r }), ...(tool && { tool }) });
      }
      const ended = { finish_reason: reason, ...(why !== undefined && { stop_reason: why }) };
      if (reason) frames.push({ t: "finish", i, n: this.#last.get(i) ?? 0, ...ended });
      return frames;
    });
  }
}

function toPieces({ index: k, id, function: called }) {
  const begun = id || called?.name ? [{ k, id, name: called?.name }] : [];
  return called?.arguments ? [...begun, { k, a: called.arguments }] : begun;
}
