// A recording of quire.live.v1, played as if a server sent it: what most servers cannot show. tools/live_recording.py makes it.

import { Decoder } from "./decoder.js";
import { Picture } from "./picture.js";

const FILE = new URL("./full_pool.bin", import.meta.url);
/** Blocks of the recorded server, and what else is said about it. */
export const RECORDED = "a recording of SmolLM2 on two cores, with 32 blocks";
// How long the last picture is shown.
const REST_MS = 2000;

/** The recording could not be loaded. */
export class RecordingMissing extends Error {}

export class Recording {
  /** What the recorded server shows at this moment. */
  picture = new Picture();
  #isClosed = false;
  /** @type {any} */
  #timer = 0;
  #wake = () => {};

  /**
   * Load the recording and play it once, as fast as it was. Resolves a moment after its end, or when it is closed.
   * @param {() => void} onChange called when the picture has changed
   * @throws {RecordingMissing}
   */
  async play(onChange) {
    const messages = messagesOf(await load());
    const decoder = new Decoder();
    const begun = performance.now() - messages[0].ms;
    for (const { ms, buffer } of messages) {
      await this.#until(begun + ms);
      if (this.#isClosed) return;
      decoder.receive(buffer);
      this.picture.receive(decoder, performance.now());
      onChange();
    }
    await this.#until(performance.now() + REST_MS);
  }

  /** End it. */
  close() {
    this.#isClosed = true;
    clearTimeout(this.#timer);
    this.#wake();
  }

  /** Resolves at a time of performance.now(), or when the recording is closed. */
  #until(time) {
    return new Promise((resolve) => {
      this.#wake = () => resolve(undefined);
      if (this.#isClosed) resolve(undefined);
      else this.#timer = setTimeout(this.#wake, Math.max(0, time - performance.now()));
    });
  }
}

async function load() {
  try {
    const response = await fetch(FILE);
    if (response.ok) return await response.arrayBuffer();
  } catch {
    // The server is away.
  }
  throw new RecordingMissing("The recording cannot be loaded from the server.");
}

/**
 * The messages of a recording, each of them behind its length, and when they came.
 * @param {ArrayBuffer} data
 * @returns {{ms: number, buffer: ArrayBuffer}[]}
 */
export function messagesOf(data) {
  const lengths = new DataView(data);
  const decoder = new Decoder();
  const messages = [];
  for (let at = 0, length; at < data.byteLength; at += 4 + length) {
    length = lengths.getUint32(at, true);
    const buffer = data.slice(at + 4, at + 4 + length);
    decoder.receive(buffer);
    messages.push({ ms: 1000 * decoder.state.time, buffer });
  }
  return messages;
}
