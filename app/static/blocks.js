// Markdown to HTML text, block by block. The HTML is NOT safe yet: markdown.js cleans it.
//
// A streamed answer is cut into closed blocks, which no later text can change, and the open tail:
//   [0, closed) rendered once | [closed, end) parsed again with each delta
// A block closes when a complete line of the next block stands after it. Only complete lines count:
// after "1. a\n\n2" the text may go on as ". b", which belongs to the same list.

import { Lexer, Marked } from "marked";

const escapeHtml = (text) =>
  text.replace(/[&<>"]/g, (char) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[char]);

const marked = new Marked({
  gfm: true,
  // Raw HTML is text: a tokenizer that finds nothing leaves it to the paragraph around it.
  tokenizer: { html: () => undefined, tag: () => undefined },
  renderer: {
    // An image would load from elsewhere as soon as it is shown.
    image: ({ text, href }) => `[${escapeHtml(text || "image")}: ${escapeHtml(href)}]`,
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
  },
});

/**
 * All blocks of a finished text, with the link definitions that any of them may use.
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

/** The blocks alone: what stands inside of them is looked at when they are rendered. */
const lexBlocks = (text) => new Lexer(marked.defaults).blockTokens(text);

/** Cuts a growing text into closed blocks and an open tail. */
export class BlockStream {
  #end = 0;

  /**
   * @param {string} text all text so far
   * @returns {{closed: string[], open: string}} the blocks that closed since the last call, and the tail
   */
  update(text) {
    const tail = text.slice(this.#end);
    const closed = closedBlocks(tail.slice(0, tail.lastIndexOf("\n") + 1));
    this.#end += closed.length && closed.at(-1).end;
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
    // marked joins some neighbours into one token with a newline of its own; such a block stays open.
    if (!lines.startsWith(token.raw, end)) break;
    end += token.raw.length;
    if (token.type !== "space" && token.type !== "def") closed.push({ raw: token.raw, end });
  }
  return closed;
}

/** Close the emphasis and code spans that the tail has opened, so that no bare marks flicker by. */
export function completeTail(tail) {
  const paragraph = tail.slice(tail.lastIndexOf("\n\n") + 1);
  if (/^ {0,3}(```|~~~)/m.test(tail) || /^( {4}|\t)/.test(paragraph)) return tail;
  const isOpen = (mark) => paragraph.split(mark).length % 2 === 0;
  if (isOpen("`")) return `${tail}\``;
  if (isOpen("**") && !/\*\*\s*$/.test(tail)) return `${tail}**`;
  return tail;
}
