// What the live view shows, apart from the page: the newest state of each block and request, what happened lately, and
// since when each block has been as it is.

import { NUM_HUES, OTHERS } from "./hues.js";
import { CACHED, STATES } from "./states.js";
import { blocksFrom, blocksOf, positionOf } from "./tables.js";

/** @typedef {import("./live_types.js").Group} Group */
/** @typedef {import("./live_types.js").Step} Step */

// More than a wide window has columns for: of a long answer also the step that has read its question.
const MAX_STEPS = 4096;
// How long a copied block is marked: until it has been looked for.
const FLASH_MS = 2500;
// Of requests that have ended: their blocks are shown while they are in the cache.
const MAX_ENDED = 50;

export class Picture {
  states = new Uint8Array(0);
  owners = new Uint32Array(0);
  /** The server's time of the newest message, in seconds. */
  time = 0;
  /** The newest message's JSON part; null before the first. @type {import("./live_types.js").LiveState | null} */
  latest = null;
  /** @type {Map<number, Group>} */
  groups = new Map();
  /** @type {Step[]} */
  steps = [];
  /** Whether requests that end keep their hues, so that no later one has the hue of one of them. */
  keepsHues = false;
  /** When blocks became copies a moment ago, by their ids. @type {Map<number, number>} */
  #copies = new Map();
  /** The server's time since which each block has been as it is. */
  #since = new Float64Array(0);
  /** The server's time since which each block holds what it holds, also while requests find and release it. */
  #filled = new Float64Array(0);
  /** The server's time of the first picture: what it shows may have been so for long. */
  #begun = 0;
  /** When a picture of the newest time came first, of performance.now(): at rest the same one comes again. */
  #came = { time: NaN, now: 0 };
  /** The hues of requests, kept a while after their end for the steps they were in. @type {Map<number, number>} */
  #hues = new Map();
  /** By the id, as the server sends it: the beginning of that of the answer. @type {Map<string, {ids: number[], time: number}>} */
  #ended = new Map();
  /** @type {Set<number> | null} */
  #changed = null;

  /** Take over the newest message. @param {import("./decoder.js").Decoder} decoder @param {number} now of performance.now() */
  receive({ state, states, owners, changed }, now) {
    this.#noteSince(state, states, owners, changed);
    this.states = states;
    this.owners = owners;
    this.time = state.time;
    if (this.#came.time !== state.time) this.#came = { time: state.time, now };
    this.latest = state;
    this.#noteChanged(changed);
    this.#noteGroups(state, changed);
    for (const record of state.records) this.#noteRecord(record, now);
    this.steps.splice(0, this.steps.length - MAX_STEPS);
    this.#forgetHues();
  }

  /** Forget what a connection has told of requests, steps and times: the next one counts them anew. */
  beginAnew() {
    this.groups = new Map();
    this.steps = [];
    this.#copies.clear();
    this.#since = new Float64Array(0);
    this.#came = { time: NaN, now: 0 };
    this.#hues.clear();
    this.#ended.clear();
  }

  /** The indexes of blocks that have changed since the last call; null for all. */
  takeChanged() {
    const changed = this.#changed;
    this.#changed = new Set();
    return changed;
  }

  /**
   * The blocks that were copied to a moment ago, and how much of the time that they shine is left, 1 to 0.
   * @param {number} now of performance.now()
   * @returns {[number, number][]} indexes with that share
   */
  flashesAt(now) {
    /** @type {[number, number][]} */
    const flashes = [];
    for (const [id, begun] of this.#copies) {
      if (now - begun < FLASH_MS) flashes.push([id - 1, 1 - (now - begun) / FLASH_MS]);
      else this.#copies.delete(id);
    }
    return flashes;
  }

  /** @param {number} owner */
  hueOf(owner) {
    return this.#hues.get(owner) ?? OTHERS;
  }

  /** The ids of the blocks of a request, in ascending order. @param {number} number */
  blocksOf(number) {
    const group = this.groups.get(number);
    if (group?.tables) return [...new Set(blocksOf(group.tables))].sort((a, b) => a - b);
    const ids = [];
    this.owners.forEach((owner, index) => owner === number && ids.push(index + 1));
    return ids;
  }

  /** The ids of the blocks in the cache that the request of an answer has left there. @param {string} answer its id on the server */
  leftBy(answer) {
    const [, { ids, time }] = [...this.#ended].find(([id]) => answer.startsWith(id)) ?? ["", { ids: [], time: 0 }];
    return ids.filter((each) => this.states[each - 1] === CACHED && this.#filled[each - 1] <= time);
  }

  /** The request of an answer. @param {string} answer its id on the server @returns {Group | undefined} */
  find(answer) {
    return [...this.groups.values()].find(({ id }) => id && answer.startsWith(id));
  }

  /**
   * The story of a block.
   * @param {number} id
   * @param {number} [now] of performance.now(); by default when the newest picture came: an engine at rest makes no other
   * @returns {{id: number, state: string, groups: Group[], from: number | null, seconds: number, isOlder: boolean}} whose it is,
   *   the position of its first token, where that is known, and since when it is so, or seen to be so if it `isOlder`
   */
  storyOf(id, now = this.#came.now) {
    const index = id - 1;
    const all = [...this.groups.values()];
    const holders = all.filter(({ n, tables }) => (tables ? positionOf(tables, id) !== null : n === this.owners[index]));
    const position = holders.map(({ tables }) => tables && positionOf(tables, id)).find((found) => found !== undefined);
    const from = position === undefined ? null : position * this.latest.block_size;
    const seconds = this.time - this.#since[index] + (now - this.#came.now) / 1000;
    const isOlder = this.#since[index] === this.#begun;
    return { id, state: STATES[this.states[index]].name, groups: holders, from, seconds, isOlder };
  }

  /**
   * What paging saves: blocks that requests hold, the slots for tokens that are empty in them, of how many, and the blocks that
   * a cache would reserve which keeps each request in one piece. Null while no own request runs.
   */
  get saving() {
    const own = [...this.groups.values()].filter(({ tables }) => tables?.length);
    if (!own.length) return null;
    const { block_size } = this.latest;
    const held = new Set(own.flatMap(({ tables }) => blocksOf(tables))).size;
    const empty = emptySlots(own.flatMap((group) => group.tables), block_size);
    // One that waits for its reader has no row of the batch, but its blocks.
    const reserved = own.reduce((sum, { prompt, limit, tables: of }) =>
      sum + of.filter(([, , runs]) => countOf(runs)).length * Math.ceil((prompt + limit) / block_size), 0);
    return { held, empty, slots: held * block_size, reserved };
  }

  #noteSince({ time, groups, block_size }, states, owners, changed) {
    const found = foundBlocks([...this.groups.values(), ...groups], block_size);
    const note = (index) => {
      this.#since[index] = time;
      if (!found.has(index + 1)) this.#filled[index] = time;
    };
    if (this.#since.length !== states.length) {
      this.#begun = time;
      this.#since = new Float64Array(states.length).fill(time);
      this.#filled = this.#since.slice();
    }
    // The decoder has made new arrays for a whole picture; of a difference it says itself what has changed.
    else if (!changed) {
      states.forEach((state, index) => {
        if (state !== this.states[index] || owners[index] !== this.owners[index]) note(index);
      });
    }
    else for (const index of changed) note(index);
  }

  #noteChanged(changed) {
    if (!changed) this.#changed = null;
    else if (this.#changed) for (const index of changed) this.#changed.add(index);
  }

  #noteGroups({ groups, records, lost }, changed) {
    const before = this.groups;
    this.groups = new Map();
    for (const group of groups) {
      if (!this.#hues.has(group.n)) this.#hues.set(group.n, group.own ? this.#freeHue() : OTHERS);
      this.groups.set(group.n, { ...group, hue: this.#hues.get(group.n) });
    }
    const ended = [...before.values()].filter(({ n }) => !this.groups.has(n));
    const isKnown = ([n]) => before.has(n) || this.groups.has(n);
    const isAlone = ended.length === 1 && !lost && records.every(([kind, , , , shares]) => kind !== "step" || shares.every(isKnown));
    // The blocks that it has got since the picture before, if nobody else has left any.
    const late = isAlone && changed ? [...changed].filter((index) => this.states[index] === CACHED).map((index) => index + 1) : [];
    for (const { id, tables } of ended) {
      if (id && tables) this.#ended.set(id, { ids: [...new Set([...blocksOf(tables), ...late])], time: this.time });
    }
    for (const id of [...this.#ended.keys()].slice(0, -MAX_ENDED)) this.#ended.delete(id);
  }

  /** The hue that the fewest requests have. */
  #freeHue() {
    const counts = Array(NUM_HUES).fill(0);
    for (const hue of this.#hues.values()) if (hue !== OTHERS) counts[hue - 1]++;
    return counts.indexOf(Math.min(...counts)) + 1;
  }

  /** @param {any[]} record @param {number} now */
  #noteRecord(record, now) {
    const [kind, at, ...fields] = record;
    if (kind === "copy") this.#copies.set(fields[1], now);
    if (kind !== "step") return;
    const [ms, isOver, shares] = fields;
    // A number that is in no message is of an own request, which began and ended since the last one.
    for (const [n] of shares) if (n && !this.#hues.has(n)) this.#hues.set(n, this.#freeHue());
    const named = shares.map(([n, prompt, decode, accepted]) => ({ n, hue: this.hueOf(n), prompt, decode, accepted }));
    // What is read stands above what is written, and requests of one hue together.
    named.sort((a, b) => Number(a.prompt > 0) - Number(b.prompt > 0) || a.hue - b.hue);
    this.steps.push({ at, ms, isOver, shares: named });
  }

  #forgetHues() {
    if (this.keepsHues) return;
    for (const n of this.#hues.keys()) if (!this.groups.has(n)) this.#hues.delete(n);
  }
}

/** The ids of the blocks that requests have found in the cache. @param {Group[]} groups @param {number} blockSize */
function foundBlocks(groups, blockSize) {
  const found = groups.flatMap(({ tables, cached }) =>
    (tables && cached ? tables.flatMap((table) => blocksOf([table]).slice(0, Math.floor(cached / blockSize))) : []));
  return new Set(found);
}

/** The slots without a token in the blocks of sequences; those of a block that several share count once. */
function emptySlots(tables, blockSize) {
  /** @type {Map<number, number>} */
  const byBlock = new Map();
  for (const [, tokens, runs] of tables) {
    const [begun, ...others] = blocksFrom(runs, Math.floor(tokens / blockSize));
    if (begun) byBlock.set(begun, Math.min(byBlock.get(begun) ?? blockSize, blockSize - (tokens % blockSize)));
    for (const id of others) byBlock.set(id, byBlock.get(id) ?? blockSize);
  }
  return [...byBlock.values()].reduce((sum, slots) => sum + slots, 0);
}

function countOf(runs) {
  return runs.reduce((sum, value, at) => sum + (at % 2 ? value : 0), 0);
}
