// A short piece of a text around words that were searched for.

const LENGTH = 96;
const BEFORE = 32;
// Marks of Markdown that only make a short piece harder to read.
const MARKS = /\*\*|`+|^ *(?:#{1,6}|[-*+]) /gm;

/** The words of a query, the longest first. @param {string} query */
export const wordsOf = (query) =>
  query.toLowerCase().split(/\s+/).filter(Boolean).sort((a, b) => b.length - a.length);

/** Matches each of these words, in capital letters, too. @param {string[]} words at least one, the longest first */
export function patternOf(words) {
  const sources = words.map((word) => word.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&"));
  return new RegExp(`(${sources.join("|")})`, "giu");
}

/**
 * A piece of a text around the longest word that is in it.
 * @param {string} text
 * @param {string[]} words the longest first
 * @returns {string[]} its parts: every second one is one of the words
 */
export function excerptOf(text, words) {
  const at = words.map((word) => text.search(patternOf([word]))).find((found) => found >= 0) ?? 0;
  const from = at > BEFORE ? startOfWord(text, at - BEFORE, at) : 0;
  const to = Math.max(from + LENGTH, at + words[0].length);
  // Half of a character may be left at the ends.
  const piece = text.slice(from, to).replace(/^[\udc00-\udfff]|[\ud800-\udbff]$/g, "").replace(MARKS, "").replace(/\s+/g, " ").trimEnd();
  return `${from ? "…" : ""}${piece}${to < text.length ? "…" : ""}`.split(patternOf(words));
}

/** Where the first word after `from` begins, if that is before `end`. */
function startOfWord(text, from, end) {
  const space = text.slice(from, end).search(/\s/);
  return space < 0 ? from : from + space + 1;
}
