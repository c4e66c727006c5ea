// Formulas in Markdown: $$…$$, \[…\], \(…\), and $…$ by pandoc's rule and not beside a letter, so that prices and
// variables are text; "$n$th" is none of them. Here they become code of a class, which shows their source; maths.js
// typesets it.

// Within a paragraph. The four parts exclude each other's delimiters, so that nothing is searched twice.
export const FORMULA =
  /\$\$(?:\\[^`]|[^\\$`])+\$\$(?!\$)|(?<!\w)\$(?![\s$])(?:\\[^`]|[^\\$`])+(?<!\s|\s[A-Z]{1,3}(?=. ?\d))\$(?!(?!(?:th|s)\b)\w)|\\\((?:\\[^()[\]`]|[^\\`])+\\\)|\\\[(?:\\[^()[\]`]|[^\\`])+\\\]/g;
const HERE = new RegExp(`^(?:${FORMULA.source})`);
// A formula on lines of its own, a blank line, or a line that begins another block.
const PARAGRAPH_END = /\n(?: {0,3}(\$\$ *[\n\\]|\\\[)|[ \t]*\n| {0,3}(?:#{1,6}|>|[*+-]|1[.)])[ \t])/;

/** The text with letters in the place of what emphasis may not look into. */
export const mask = (text, pattern) => text.replace(pattern, ({ length }) => "x".repeat(length));

/**
 * Extensions of marked. A formula on lines of its own ends at a blank line, also if it has not been closed.
 * @param {(text: string) => string} escapeHtml
 * @returns {import("marked").TokenizerAndRendererExtension[]}
 */
export const formulaExtensions = (escapeHtml) => [
  {
    name: "formula",
    level: "inline",
    start: (src) => src.indexOf("$"),
    tokenizer(src, tokens) {
      const match = HERE.exec(src);
      // What stands before is not in the text.
      return match && !(/^\$[^$]/.test(src) && /\w/.test(tokens.at(-1)?.raw.at(-1) ?? "")) && { type: "formula", raw: match[0] };
    },
    renderer: ({ raw }) => `<code class="formula">${escapeHtml(raw)}</code>`,
  },
  {
    name: "formulaLines",
    level: "block",
    // Within this paragraph only, of which lists have none: otherwise the rest would be searched for each.
    start(src) {
      const match = this.lexer.state.top && PARAGRAPH_END.exec(src);
      return match?.[1] ? match.index + 1 : -1;
    },
    tokenizer(src) {
      const match = /^ {0,3}(?:\$\$(?= *[\n\\])|(\\\[))/.exec(src);
      if (!match) return undefined;
      const end = match[1] ? /\\\]|\n[ \t]*\n|$/g : /\$\$|\n[ \t]*\n|$/g;
      end.lastIndex = match[0].length;
      const { 0: closing, index } = end.exec(src);
      const lines = src.slice(0, index);
      if (!closing.trim()) return { type: "formulaLines", raw: lines, text: lines };
      // In a sentence, the formula is followed by its full stop or comma.
      const [after, stop] = /^([.,;:]?)[ \t]*\n?/.exec(src.slice(index + 2));
      return { type: "formulaLines", raw: lines + closing + after, text: lines + stop + closing };
    },
    renderer: ({ text }) => `<p><code class="formula">${escapeHtml(text.trim())}</code></p>`,
  },
];
