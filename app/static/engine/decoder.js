// Reads the messages of quire.live.v1 (docs/reference/live.md): a whole picture first, then what has changed.

const HEAD_BYTES = 9;
const WHOLE = 0;
const DIFFERENCE = 1;
const COPIED = 0x80;

export class Decoder {
  /** The JSON part of the newest message. @type {import("./live_types.js").LiveState} */
  state;
  /** State of each block, without flags; the block with the id 1 is the first. */
  states = new Uint8Array(0);
  /** Number of the request that holds each block; 0 if none does, or none that is told. */
  owners = new Uint32Array(0);
  /** Indexes that the newest message has changed; null after a whole picture. @type {number[] | null} */
  changed = null;
  #number = -1;

  /**
   * Read the next message of a connection.
   * @param {ArrayBuffer} buffer
   * @throws {Error} if it is not one, or does not follow the last one
   */
  receive(buffer) {
    const head = new DataView(buffer);
    if (buffer.byteLength < HEAD_BYTES) throw new Error(`A message of the live view has ${buffer.byteLength} bytes.`);
    const kind = head.getUint8(0);
    const number = head.getUint32(1, true);
    const blocks = HEAD_BYTES + head.getUint32(5, true);
    const state = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, HEAD_BYTES, blocks - HEAD_BYTES)));
    const bytes = new Reader(new Uint8Array(buffer, blocks));
    if (kind === WHOLE) this.#readWhole(bytes, state.num_blocks);
    else if (kind === DIFFERENCE && this.state && number === this.#number + 1) this.#readDifference(bytes);
    else throw new Error(`A message of the live view is of kind ${kind} and has the number ${number}, after ${this.#number}.`);
    this.#number = number;
    this.state = state;
  }

  #readWhole(bytes, count) {
    this.states = new Uint8Array(count);
    this.owners = new Uint32Array(count);
    this.changed = null;
    let from = 0;
    while (!bytes.isAtEnd) {
      const to = from + bytes.varint();
      const state = bytes.byte();
      this.states.fill(state & ~COPIED, from, to);
      this.owners.fill(bytes.varint(), from, to);
      from = to;
    }
    if (from !== count) throw new Error(`A picture of the live view has ${from} blocks of ${count}.`);
  }

  #readDifference(bytes) {
    /** @type {number[]} */
    const changed = [];
    let id = 0;
    while (!bytes.isAtEnd) {
      id += bytes.varint();
      const state = bytes.byte() & ~COPIED;
      const owner = bytes.varint();
      if (id < 1 || id > this.states.length) throw new Error(`A message of the live view changes the block ${id}.`);
      this.states[id - 1] = state;
      this.owners[id - 1] = owner;
      changed.push(id - 1);
    }
    this.changed = changed;
  }
}

class Reader {
  #bytes;
  #at = 0;

  /** @param {Uint8Array} bytes */
  constructor(bytes) {
    this.#bytes = bytes;
  }

  get isAtEnd() {
    return this.#at >= this.#bytes.length;
  }

  byte() {
    if (this.isAtEnd) throw new Error("A message of the live view ends too early.");
    return this.#bytes[this.#at++];
  }

  /** Seven bits in each byte, the lowest first. */
  varint() {
    let value = 0;
    for (let scale = 1; ; scale *= 128) {
      const byte = this.byte();
      value += (byte & 127) * scale;
      if (byte < 128) return value;
    }
  }
}
