// What a screen reader is told of an answer while it is written: whole sentences and lines, without the marks of Markdown
// and formulas. The text of code is told as it is.

import { FORMULA } from "./formulas.js";

const FENCE = /^\s*(`{3,}|~{3,})/;
// The end of a sentence; none within code or a link, which may still be open.
const CODE_OR_LINK = /`[^`]*(?:`|$)|\[[^\]]*(?:\](?:\([^)]*(?:\)|$))?|$)/;
const END = new RegExp(`${CODE_OR_LINK.source}|(?<end>[.!?…](?=\\s)|[。！？])`, "g");
// A line of a table is told when it is whole; the one beneath the heading says nothing.
const ROW = /^\s*\|/;
const RULER = /^(?=[^-]*-)[\s|:-]+$/;
// Code, a link, a formula, or a mark. No part looks beyond where another of its kind begins, or beyond 2,000 characters.
const CODE = /(?<!`)(?<ticks>`{1,8})(?!`)(?<code>.{1,2000}?)(?<!`)\k<ticks>(?!`)/;
const LINK = /!?\[(?<label>[^[\]]*)\]\((?:[^()\s]|\([^()\s]*\))*(?: +"[^"]*")?\)/;
const MARKS = new RegExp(`${CODE.source}|${LINK.source}|(?<formula>${FORMULA.source})|\\*\\*|__|\`|\\$\\$|\\\\[[\\]]`, "g");

export class Announced {
  /** What stands before is told already. */
  #told = 0;
  /** The mark that ends the code block at that place, or "". */
  #fence = "";

  /** @param {string} begun what was written before; its last sentence is told from its beginning if it is not complete */
  constructor(begun) {
    this.next(begun);
  }

  /**
   * What can be told since the last call, as it is spoken.
   * @param {string} text all of the answer so far
   * @param {boolean} [isOver] whether the answer has ended, so that also its last sentence is told
   */
  next(text, isOver = false) {
    const told = [];
    while (this.#told < text.length) {
      const newline = text.indexOf("\n", this.#told);
      const line = text.slice(this.#told, newline < 0 ? text.length : newline);
      const isWhole = newline >= 0 || isOver;
      const isBegin = this.#told === 0 || text[this.#told - 1] === "\n";
      const mark = isBegin ? (FENCE.exec(line)?.[1] ?? "") : "";
      const isLine = this.#fence || mark || (isBegin && ROW.test(line));
      const length = isWhole ? line.length : isLine ? 0 : endOfSentence(line);
      if (!length && !isWhole) break;
      if (this.#fence ? mark.startsWith(this.#fence) : mark) this.#fence = this.#fence ? "" : mark;
      else told.push(this.#fence ? line : spoken(line.slice(0, length), isBegin));
      this.#told += length + (newline >= 0 && isWhole ? 1 : 0);
    }
    return told.filter((each) => each.trim()).join("\n");
  }
}

/** Where the last complete sentence of a line ends; 0 without one. */
function endOfSentence(line) {
  const last = [...line.matchAll(END)].findLast((match) => match.groups?.end);
  return last ? last.index + 1 : 0;
}

/** The words of links, code, formulas and cells, and no marks for headings, quotes, bold text and code. */
function spoken(text, isBegin) {
  if (isBegin && RULER.test(text)) return "";
  const line = isBegin ? text.replace(/^\s*(?:#{1,6}|>)(?: |$)/, "") : text;
  const words = line.replace(MARKS, (...match) => {
    const { code, label, formula } = match.at(-1);
    if (label !== undefined) return spoken(label, false);
    return code ?? formula?.replace(/^(?:\$\$?|\\.)|(?:\$\$?|\\.)$/g, "") ?? "";
  });
  const cells = isBegin && ROW.test(words) ? words.split(/(?<!\\)\|/).map((cell) => cell.trim()) : [words];
  return cells.filter(Boolean).join(", ").trim();
}
