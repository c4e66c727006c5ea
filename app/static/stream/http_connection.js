// What a Socket does, by HTTP requests: for networks that block WebSockets. One request for each stream, or for the rest of
// one, whose server-sent events become frames of quire.v1.

import { readEvents } from "./event_source.js";
import { TTL_S } from "./protocol.js";
import { authorization, cancelKept, readHealth } from "./server.js";
import { CLOSE_LOST } from "./socket.js";
import { Stream } from "./stream.js";

const CLOSE_RESTART = 1012;
const CLOSE_UNAUTHENTICATED = 4401;
// While nothing is asked, nothing else would tell that the server is gone. Beside answers it sends heartbeats as often.
const HEARTBEAT_MS = 15_000;

export class HttpConnection {
  /**
   * The open streams; `kept` is the server's id of one that it keeps, undefined as long as that is not known.
   * @type {Map<string, {stream: Stream, abort: AbortController, kept: string | null | undefined}>}
   */
  #open = new Map();
  #key;
  #isDraining = false;
  #onDraining;
  #onFrame;
  #closed;
  #heardAt = Date.now();
  #timer = setInterval(() => this.#beat(), HEARTBEAT_MS);

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

  /** Open a stream, which the server keeps if it has a `key`. */
  start(id, request, key = null) {
    const stream = new Stream(id, Array(request.n ?? 1).fill(0), Infinity);
    const headers = { "Content-Type": "application/json", ...(key && { "X-Quire-Resume": "1", "Idempotency-Key": key }) };
    const stream_options = { include_usage: true, continuous_usage_stats: true };
    const body = JSON.stringify({ ...request, stream: true, stream_options });
    return this.#read(stream, "/v1/chat/completions", { method: "POST", headers, body }, key ? undefined : null);
  }

  /** Open the rest of a stream that the server keeps. */
  resume(id, { stream, after }) {
    const address = `/v1/streams/${encodeURIComponent(stream)}?after=${after.join(".")}`;
    return this.#read(new Stream(id, after, Infinity, stream), address, { headers: { Accept: "text/event-stream" } }, stream);
  }

  /** End a stream; one that the server keeps does not end with its request. Returns whether it was open. */
  cancel(id) {
    const { stream, abort, kept } = this.#open.get(id) ?? {};
    if (!stream) return false;
    // As long as it has no name it goes on, and is cancelled then.
    if (kept !== undefined) {
      abort.abort();
      this.#endKept(stream, kept);
    }
    this.#open.delete(id);
    this.#endIfDrained();
    return true;
  }

  /** End what the server keeps of a stream that was cancelled. */
  async #endKept(stream, kept) {
    if (kept !== null && !(await cancelKept(kept, this.#key))) return this.#end(CLOSE_LOST);
    const frame = { t: "done" };
    stream.receive(frame);
    this.#onFrame(stream, frame);
  }

  /** The network itself slows the server down. */
  show() {}

  /** End the connection if the server was not heard for long. Time is that of the clock, which a sleep does not stop. */
  check() {
    if (this.#open.size && Date.now() - this.#heardAt > 2 * HEARTBEAT_MS) this.#end(CLOSE_LOST);
  }

  #beat() {
    if (this.#open.size) this.check();
    else readHealth().catch(() => this.#end(CLOSE_LOST));
  }

  #read(stream, address, request, kept) {
    const abort = new AbortController();
    if (!this.#open.size) this.#heardAt = Date.now();
    this.#open.set(stream.id, { stream, abort, kept });
    const headers = { ...request.headers, ...authorization(this.#key) };
    const run = this.#run(stream, address, { ...request, headers, signal: abort.signal });
    run.catch(() => abort.signal.aborted || this.#end(CLOSE_LOST));
    return stream;
  }

  async #run(stream, address, request) {
    const response = await fetch(address, request);
    const kept = response.headers.get("X-Quire-Stream-Id");
    const open = this.#open.get(stream.id);
    if (open?.stream !== stream) {
      // Unless the connection has ended, it was cancelled meanwhile.
      if (!request.signal.aborted) this.#endKept(stream, kept);
      return response.body?.cancel();
    }
    open.kept = kept;
    if (!response.ok) return this.#refuse(stream, (await response.json()).error, response.status);
    this.#receive(stream, { t: "accepted", stream: kept, ttl_s: kept ? TTL_S : 0 });
    const reader = new ChunkReader(stream.received);
    const hear = () => {
      this.#heardAt = Date.now();
    };
    for await (const data of readEvents(response.body, hear)) {
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
  /** Number of the last token of each choice. @type {number[]} */
  #last;
  /** How many tokens of each choice the server has counted. @type {number[]} */
  #counted;

  /** `after` are the numbers of the last tokens that were received before. */
  constructor(after = []) {
    this.#last = [...after];
    this.#counted = [...after];
  }

  /** @returns {object[]} */
  read({ choices, usage, after }) {
    if (usage) this.usage = usage;
    const positions = after?.split(".").map(Number);
    return (choices ?? []).flatMap(({ index: i, delta, logprobs, finish_reason: reason, stop_reason: why }) => {
      const frames = [];
      const r = delta?.reasoning_content;
      const tool = delta?.tool_calls?.flatMap(toPieces);
      const lp = logprobs?.content;
      // Without counts each chunk is taken for one token.
      const count = usage ? usage.completion_tokens - (this.#counted[i] ?? 0) : 1;
      if (usage) this.#counted[i] = usage.completion_tokens;
      if (delta?.content || r || tool?.length || (lp?.length && (count > 0 || positions))) {
        // Only in a stream that is kept what comes behind the last token has none.
        const k = Math.max(positions ? 0 : 1, count);
        this.#last[i] = positions?.[i] ?? (this.#last[i] ?? 0) + k;
        const n = this.#last[i] - Math.max(k, 1) + 1;
        frames.push({ t: "delta", i, n, k, x: delta?.content ?? "", ...(r && { r }), ...(tool && { tool }), ...(lp && { lp }) });
      }
      const ended = { finish_reason: reason, ...(why !== undefined && { stop_reason: why }) };
      if (reason) frames.push({ t: "finish", i, n: this.#last[i] ?? 0, ...ended });
      return frames;
    });
  }
}

function toPieces({ index: k, id, function: called }) {
  const begun = id || called?.name ? [{ k, id, name: called?.name }] : [];
  return called?.arguments ? [...begun, { k, a: called.arguments }] : begun;
}
