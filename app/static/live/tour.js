// The tour: what each stop says, and the requests that it makes. Each is small, and comes after those of others.

import { RECORDED } from "../engine/recording.js";

const QUESTION = "How does paged attention work?";
const BRIEFLY = "Say it in one sentence.";
const OTHER = "What is continuous batching?";
// A few blocks of text that several requests begin with.
const INSTRUCTION = "You explain how a server of language models works. Use plain words and short sentences, name the thing you speak about, and give one example with numbers. Say nothing that you do not know. ".repeat(3);
// One sentence of a question that is read in several steps, and about how many tokens it has.
const SENTENCE = "A server keeps what it has read in blocks of memory, and shares each block that begins several questions. ";
const SENTENCE_TOKENS = 24;
// Of a long question, and at most this share of the context and of the pool.
const LONG_TOKENS = 1500;
const MOST_OF_LONG = 0.3;
const SHORT_ANSWER = 24;
const FEWEST_TOKENS = 96;
// How long an answer is to be seen.
const SECONDS = 4;
const MS = 1000 * SECONDS;
// Of the model's context, and of the pool: the tour leaves room for others.
const MOST_OF_CONTEXT = 0.2;
const MOST_OF_POOL = 0.1;
// So small a pool can be filled by eight requests, each of which takes at most this share of it.
const SMALL_POOL = 48;
const MOST_OF_FULL_POOL = 0.5;
// Of a slow model, whose answers are then not awaited.
const LONGEST_MS = 30_000;
// What a slow reader reads first; how many more it takes until the server pauses the answer, and some that are left then.
const READ_TOKENS = 32;
const PENDING_TOKENS = 192;
const LEFT_TOKENS = 64;
const REST_MS = 3000;

/**
 * How many tokens an answer of the tour has: a fast model writes more, so that there is something to see.
 * @param {import("../engine/live_types.js").LiveState} state
 * @param {number} context the most tokens of the model's context
 * @param {number} [share] of the pool that an answer may take
 * @param {number} [unknown] how many tokens it has, if no speed is known yet
 */
export function answerTokens({ num_blocks, block_size, figures }, context, share = MOST_OF_POOL, unknown = FEWEST_TOKENS) {
  const inTime = figures.between_tokens_ms ? MS / figures.between_tokens_ms.p50 : unknown;
  const most = Math.min(MOST_OF_CONTEXT * context, share * num_blocks * block_size);
  return Math.round(Math.max(FEWEST_TOKENS, Math.min(inTime, most)));
}

/**
 * A question that takes several steps to read.
 * @param {import("../engine/live_types.js").LiveState} state
 * @param {number} context the most tokens of the model's context
 */
export function longQuestion({ num_blocks, block_size }, context) {
  const most = Math.min(LONG_TOKENS, MOST_OF_LONG * context, MOST_OF_LONG * num_blocks * block_size);
  return `${SENTENCE.repeat(Math.max(1, Math.floor(most / SENTENCE_TOKENS)))}${QUESTION}`;
}

/**
 * The part of the view that a stop speaks of; its class is this name.
 * @typedef {"map" | "timeline" | "queue"} Part
 *
 * @typedef {object} Stop
 * @property {string} title
 * @property {string} text what to look at
 * @property {Part} part where
 * @property {(guide: import("./tour_guide.js").TourGuide) => Promise<void>} [play] without it a recording is shown
 * @property {boolean} [isRecorded] whether there is a recording, which is shown also where the server has no time
 */

/**
 * The stops for an engine.
 * @param {import("../engine/live_types.js").LiveState} state of it
 * @param {number} context the most tokens of the model's context
 * @returns {Stop[]}
 */
export function stopsFor(state, context) {
  const tokens = answerTokens(state, context);
  return [...inSteps(tokens, longQuestion(state, context)), ...inBlocks(tokens), fullPool(state, context), ...atTheEnd(tokens)];
}

/** @param {number} tokens of an answer @param {string} long a question @returns {Stop[]} */
const inSteps = (tokens, long) => [
  {
    title: "One answer",
    part: "timeline",
    text: "First the question is read, in one step: the column with lines. Then each step writes one token. A block is room for a few tokens: when the last one is full, the answer takes another, wherever one is free. An answer that takes less than four seconds is asked for again.",
    play: (guide) => guide.lasts(MS, () => guide.all([guide.start(ask(QUESTION, tokens))])),
  },
  {
    title: "A second one joins",
    part: "timeline",
    text: "A second question comes while the first answer is being written. It waits for nobody: from its column with lines on, each step works for both, and has two colours.",
    play: (guide) => guide.lasts(MS, async () => {
      const first = guide.start(ask(QUESTION, 2 * tokens));
      await first.reaches(tokens / 2);
      await guide.all([guide.start(ask(OTHER, tokens / 2))]);
      await guide.leave();
    }),
  },
  {
    title: "A long question",
    part: "timeline",
    text: "A long question is read in chunks, one a step, so that others go on writing: several columns with lines, and each has the colour of the first answer at its foot.",
    play: (guide) => guide.lasts(MS, async (number) => {
      const first = guide.start(ask(QUESTION, 2 * tokens));
      await first.reaches(tokens / 2);
      // Else it would be found in the cache from the second time on.
      await guide.all([guide.start(ask(`${number}. ${long}`, SHORT_ANSWER))]);
      await guide.leave();
    }),
  },
];

/** @param {number} tokens of an answer @returns {Stop[]} */
const inBlocks = (tokens) => [
  {
    title: "Shared blocks",
    part: "map",
    text: "Four requests begin with the same instruction. It is computed once: the striped blocks are shared by all four, and each takes blocks of its own only for what differs.",
    play: (guide) => guide.lasts(MS, async () => {
      const first = guide.start(instructed(QUESTION, tokens));
      await first.reaches(1);
      await guide.all([first, ...[OTHER, "What is a block?", "What is a token?"].map((question) => guide.start(instructed(question, tokens)))]);
    }),
  },
  {
    title: "Copies",
    part: "map",
    text: "One question, four answers at once, all in the colour of their request. They share its blocks, also the last one, which is not full. An answer that writes into that one gets a copy of it first: the circles.",
    async play(guide) {
      // One of the two may fill its last block, and then nothing is copied.
      for (const question of [`${QUESTION} ${BRIEFLY}`, QUESTION]) {
        await linger(guide, { ...instructed(question, tokens), n: 4, temperature: 1 });
      }
    },
  },
  {
    title: "A slow reader",
    part: "queue",
    text: "This page stops reading. After some tokens the request is paused: it moves to another lane, keeps its blocks and costs no time. Then the page reads on.",
    async play(guide) {
      const most = Math.max(2 * tokens, READ_TOKENS + PENDING_TOKENS + LEFT_TOKENS);
      await linger(guide, ask(QUESTION, most));
    },
  },
];

/** @returns {Stop} */
function fullPool(state, context) {
  /** @type {Stop} */
  const stop = {
    title: "A full pool",
    part: "queue",
    text: "When the blocks are not enough, the newest request gives its own up and waits: preemption, the sign ↺. They are kept in the host's memory (Swapped), or computed again: 0/40 is none of 40 tokens so far.",
    isRecorded: true,
  };
  if (state.num_blocks > SMALL_POOL) {
    const count = state.num_blocks.toLocaleString("en");
    return { ...stop, text: `${stop.text} ${count} blocks are too many to fill: you see ${RECORDED}.` };
  }
  const tokens = answerTokens(state, context, MOST_OF_FULL_POOL, Infinity);
  return {
    ...stop,
    play: (guide) => guide.lasts(MS, async () => {
      const answers = Array.from({ length: 8 }, (_, at) => guide.start(ask(`${QUESTION} (${at + 1})`, tokens)));
      await Promise.race([guide.all(answers), guide.rest(LONGEST_MS)]);
      await guide.leave();
    }),
  };
}

/** @param {number} tokens of an answer @returns {Stop[]} */
const atTheEnd = (tokens) => [
  {
    title: "Stopping",
    part: "map",
    text: "Four answers are being written, and their reader leaves. At once their coloured squares turn pale: cached. Others may take them, and until then what is in them can be found again.",
    async play(guide) {
      const answers = Array.from({ length: 4 }, (_, at) => guide.start(ask(`${OTHER} (${at + 1})`, 2 * tokens)));
      await Promise.all(answers.map((answer) => answer.reaches(tokens / 2)));
      await guide.leave();
    },
  },
  {
    title: "The second turn",
    part: "timeline",
    text: "A second question begins with all that the first one has, as each turn of a conversation does. That part is found in the cache, and is not read again. Point at the columns with lines: far fewer tokens are read for the second question.",
    async play(guide) {
      await guide.all([guide.start(instructed(QUESTION, SHORT_ANSWER))]);
      await guide.rest(1000);
      await guide.all([guide.start(instructed(`${QUESTION} ${BRIEFLY}`, SHORT_ANSWER))]);
    },
  },
];

/**
 * Play a request whose reader rests within the answer: a fast engine ends it else before there is a picture of it.
 * @param {import("./tour_guide.js").TourGuide} guide
 * @param {Record<string, any>} request
 */
async function linger(guide, request) {
  const slow = guide.start(request, { credit: READ_TOKENS });
  await slow.pauses();
  await guide.rest(REST_MS);
  slow.read();
  await guide.all([slow]);
}

/** The request of a stop. @param {string} question @param {number} tokens of its answer */
function ask(question, tokens, fields = {}) {
  const messages = [{ role: "user", content: question }];
  return { messages, max_tokens: Math.ceil(tokens), ignore_eos: true, priority: 100, ...fields };
}

/** In one message: there are models, as the embedded one, whose prompts have nothing but the last question. */
const instructed = (question, tokens) => ask(INSTRUCTION + question, tokens);
