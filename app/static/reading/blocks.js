// Markdown to HTML, block by block. It is NOT safe yet: markdown.js sanitizes it.
//
// A streamed answer is split into closed blocks, which later text cannot change, and the open tail:
//   [0, closed) rendered once | [closed, end) parsed again with each delta
// A block is closed when a complete line of the next block follows it. Only complete lines count:
// after "1. a\n\n2" the text may continue with ". b", which belongs to the same list.

import { Lexer, Marked, Tokenizer } from "marked";
import { FORMULA, formulaExtensions, mask } from "./formulas.js";

const escapeHtml = (text) =>
  text.replace(/[&<>"]/g, (char) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[char]);

// Beside punctuation, marks open and close at blanks, which Chinese, Japanese and Korean lack. A lone ~ is text.
const OPENS = /^(?:[\u2e80-\ud7af\uf900-\uffef][*~]|[^*~][*~]+[\u2e80-\ud7af\uf900-\uffef])/u;
const CLOSES = /(?![*_~])[\p{P}\p{S}](?=[*~]+[\u2e80-\ud7af\uf900-\uffef])|[\u2e80-\ud7af\uf900-\uffef](?=[*~])/gu;
const opening = (name) =>
  /** @this {Tokenizer} */
  function (src, masked, before) {
    if (/^~[^~]/.test(src)) return;
    return Tokenizer.prototype[name].call(this, src, masked, OPENS.test(before + src.slice(0, 4)) ? "" : before);
  };

const marked = new Marked({
  gfm: true,
  // Models end the lines of a poem or an address with a line break alone.
  breaks: true,
  extensions: formulaExtensions(escapeHtml),
  hooks: { emStrongMask: (text) => mask(mask(text, FORMULA), CLOSES) },
  tokenizer: {
    // Raw HTML is shown as text, in a paragraph: these tokenizers match nothing.
    html: () => undefined,
    tag: () => undefined,
    emStrong: opening("emStrong"),
    del: opening("del"),
  },
  renderer: {
    // An image would be loaded from another server.
    image: ({ text, href }) => `[${escapeHtml(text || "image")}: ${escapeHtml(href)}]`,
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
  },
});

/**
 * All blocks of a finished text, and the link definitions that they may use.
 * @returns {{blocks: string[], definitions: string}}
 */
export function splitBlocks(text) {
  const tokens = lexBlocks(text).filter((token) => token.type !== "space");
  return {
    blocks: tokens.filter((token) => token.type !== "def").map((token) => token.raw),
    definitions: tokens.filter((token) => token.type === "def").map((token) => token.raw).join("\n"),
  };
}

/** The HTML of one block. */
export function renderBlock(block, definitions = "") {
  return marked.parse(definitions ? `${block}\n\n${definitions}` : block);
}

/** Only the blocks; their contents are parsed when they are rendered. */
const lexBlocks = (text) => new Lexer(marked.defaults).blockTokens(text);

/** Splits a growing text into closed blocks and an open tail. */
export class BlockStream {
  #end = 0;
  #numLexed = 0;

  /**
   * @param {string} text all text so far
   * @returns {{closed: string[], open: string}} the blocks that closed since the last call, and the tail
   */
  update(text) {
    const tail = text.slice(this.#end);
    const numInLines = tail.lastIndexOf("\n") + 1;
    if (numInLines === this.#numLexed) return { closed: [], open: tail };
    const closed = closedBlocks(tail.slice(0, numInLines));
    const end = closed.length && closed.at(-1).end;
    this.#numLexed = numInLines - end;
    this.#end += end;
    return { closed: closed.map((block) => block.raw), open: text.slice(this.#end) };
  }
}

/** The blocks of `lines` (complete lines) before the last one, each with the index of its end. */
function closedBlocks(lines) {
  if (!lines) return [];
  const tokens = lexBlocks(lines);
  const last = tokens.findLastIndex((token) => token.type !== "space");
  const closed = [];
  let end = 0;
  for (const token of tokens.slice(0, Math.max(last, 0))) {
    // marked merges some neighbouring blocks into one token with an added newline; such a block stays open.
    if (!lines.startsWith(token.raw, end)) break;
    end += token.raw.length;
    if (token.type !== "space" && token.type !== "def") closed.push({ raw: token.raw, end });
  }
  return closed;
}

/**
 * Whether text that is added to a tail only makes its last text longer. If not, nothing is known.
 * @param {string} tail
 * @param {string} more
 * @param {boolean} isCode whether the last text is that of a code block
 */
export function extendsText(tail, more, isCode) {
  if (isCode) return /\S$/.test(tail) && !/[`~\n]/.test(more);
  // Before its first letter a line may become a list; marks, and a point within a word, may make links or bold text.
  return /\p{L}.*[\p{L}\p{N}]$/u.test(tail) && /^(?:[\p{L}\p{M}\p{N} ,:'?]|\.(?= |$))*$/u.test(more);
}

/** Close the bold text and code span that the tail has opened, so that no bare marks are shown. */
export function completeTail(tail) {
  const paragraph = tail.split(/\n(?:\n| *(?:[-+*]|\d+[.)]) )/).at(-1);
  if (/^ {0,3}(```|~~~)/m.test(tail) || /^( {4}|\t)/.test(paragraph)) return tail;
  const text = ` ${paragraph.replace(/`[^`]*`/g, ".")}`;
  if (text.includes("`")) return `${tail}\``;
  let isOpen = false;
  for (const { index } of text.matchAll(/\*\*/g)) {
    // Between blanks, and behind a letter or digit (2**3), a mark opens nothing; behind a blank it closes nothing.
    isOpen = isOpen ? /\s/.test(text[index - 1]) : /[^\\\w]..\S/.test(text.slice(index - 1, index + 3));
  }
  return isOpen && !text.endsWith("*") ? `${tail.trimEnd()}**` : tail;
}
