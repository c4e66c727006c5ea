import assert from "node:assert/strict";
import test from "node:test";
import { completeTail, extendsText, renderBlock } from "../../../app/static/reading/blocks.js";

const TEXTS = [
  "Quire keeps the **key-value cache** in *blocks*, and `block tables` name them: 16 tokens, 3.5 MB. Isn't it?",
  "1. A request asks for blocks\n2. Each token takes one\n   - slots need not be neighbours",
  "| what | size |\n|:-----|-----:|\n| a block | 16 tokens |",
  "```python\nfor chunk in create(model='guide', stream=True):\n    print(chunk * 2, [chunk], end='')\n```",
  "> See [the page](https://example.org/a) or www.example.org, &amp; more",
  "## A heading 2",
];
const SIZES = [1, 2, 3, 5, 8, 13];
// The end of the last text: before the tags that close it, and blanks between them.
const AFTER_TEXT = /(?:\s|<\/[^>]+>)*$/;

/** How often a longer tail was the rendered one with more text, and each one where it was not. */
function compare(text, size) {
  const wrong = [];
  let numExtended = 0;
  for (let end = 1; end < text.length; end += 1) {
    const tail = text.slice(0, end);
    const more = text.slice(end, end + size).trimEnd(); // an unfinished ** is not closed after a blank
    const before = renderBlock(completeTail(tail));
    const after = AFTER_TEXT.exec(before).index;
    const isCode = before.includes("<pre>");
    const isLink = /<a [^>]*>[^<]*<\/a>\s*(?:<\/[^>]+>\s*)*$/.test(before);
    if (isLink || before[after - 1] !== tail.at(-1) || !extendsText(tail, more, isCode)) continue;
    numExtended += 1;
    const escaped = more.replaceAll("&", "&amp;").replaceAll("'", "&#39;");
    const made = before.slice(0, after) + escaped + before.slice(after);
    if (made !== renderBlock(completeTail(tail + more))) wrong.push(tail + "|" + more);
  }
  return { numExtended, wrong };
}

test("text that extends a tail is rendered as more of its last text", () => {
  let total = 0;
  for (const text of TEXTS) {
    for (const size of SIZES) {
      const { numExtended, wrong } = compare(text, size);
      total += numExtended;
      assert.deepEqual(wrong, []);
    }
  }
  assert.ok(total > 400, `${total} of all tails were extended`);
});

test("what may change the parsing of a tail does not extend it", () => {
  assert.ok(extendsText("The first", " word, and more", false));
  for (const [tail, more] of [["1", ". one"], ["12", " pages"], ["a *word", "*"], ["a word", "\nnext"], ["a word ", "b"]]) {
    assert.ok(!extendsText(tail, more, false), tail + more);
  }
  assert.ok(extendsText("```\nif (a)", " { b[1] = *c; }", true));
  assert.ok(!extendsText("```\na", "\n```", true));
  assert.ok(!extendsText("```\na\n", "b", true));
});
