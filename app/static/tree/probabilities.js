// What is known of the tokens of an answer, if its request has asked for it: how probable each was, and what the model might
// have written in its place. The probabilities are the model's own, before temperature and all other settings.

/** A token that was less probable than these is in doubt, the more of them the more. */
export const DOUBTS = [0.8, 0.5, 0.25, 0.1];

// What is less probable is not kept: of a token that was certain, nothing else is.
const LEAST = 0.001;

/** @typedef {import("./record_types.js").Token} Token */

/** How far a token is in doubt: from 0 to the number of `DOUBTS`. @param {Token} token */
export const doubtOf = ({ p = 1 }) => DOUBTS.filter((limit) => p < limit).length;

/**
 * The tokens of an answer and those of one delta more.
 * @param {Token[]} tokens those before
 * @param {{bytes: number[], logprob: number, top_logprobs: {bytes: number[], logprob: number}[]}[]} entries OpenAI's
 * @param {number} numInText how many of them are tokens of the text; the others ended it
 * @returns {Token[]} another list: the one before may be waiting to be stored
 */
export function withTokens(tokens, entries, numInText) {
  const all = [...tokens];
  for (const [at, entry] of entries.entries()) {
    const isEnd = at >= numInText;
    // The beginning of a character, which this token goes on with.
    const begun = !isEnd && all.at(-1)?.bytes ? all.pop() : null;
    const token = begun ? joined(begun, entry) : single(entry);
    all.push(isEnd ? { ...token, isEnd } : token);
  }
  return all;
}

/** @returns {Token} */
function single({ bytes, logprob, top_logprobs: best }) {
  const others = best.filter((other) => String(other.bytes) !== String(bytes));
  const top = others.map((other) => ({ text: decode(other.bytes).text, p: toProbability(other.logprob) }));
  return { ...decode(bytes), p: toProbability(logprob), top: top.filter(({ p }) => p >= LEAST) };
}

/** Tokens of one character, as one: what else each might have been is no text. @param {any} begun @returns {Token} */
function joined({ bytes, p, numTokens = 1 }, entry) {
  return { ...decode([...bytes, ...entry.bytes]), p: p * toProbability(entry.logprob), numTokens: numTokens + 1 };
}

/** The text of bytes, and the bytes themselves if they end within a character. @param {number[]} bytes */
function decode(bytes) {
  const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  const text = decoder.decode(new Uint8Array(bytes), { stream: true }).replaceAll("\r", "");
  const rest = decoder.decode();
  return rest ? { text, bytes } : { text };
}

const toProbability = (logprob) => Number(Math.exp(logprob).toPrecision(6));
