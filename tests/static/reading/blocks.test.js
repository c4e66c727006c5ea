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
  "In twilight's cloak, where *shadows* play,\nA river of life, a river of rain.\n\n- The rain\n  that never ceases",
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

test("the lines of a poem stay lines", () => {
  for (const [text, html] of [
    ["Rain falls,\nand **stays**\n", "<p>Rain falls,<br>and <strong>stays</strong></p>"],
    ["Rain  \nfalls\\\nhere", "<p>Rain<br>falls<br>here</p>"],
    ["> Rain\n> falls", "<blockquote>\n<p>Rain<br>falls</p>\n</blockquote>"],
    ["- Rain\n  falls", "<ul>\n<li>Rain<br>falls</li>\n</ul>"],
    ["Rain $a\n= b$ falls", '<p>Rain <code class="formula">$a\n= b$</code> falls</p>'],
    ["```\nRain\nfalls\n```", "<pre><code>Rain\nfalls\n</code></pre>"],
  ]) {
    assert.equal(renderBlock(text).trim(), html);
  }
  assert.ok(!renderBlock("| Rain |\n|---|\n| falls |").includes("<br>"));
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

test("bold text and code are closed at the end of a tail, if they have opened", () => {
  for (const [tail, completed] of [
    ["a **bold", "a **bold**"],
    ["a **bold ", "a **bold**"],
    ["a **bold `code` text", "a **bold `code` text**"],
    ["run `quire", "run `quire`"],
    ["`a**b", "`a**b`"],
    ["`a**b` **c", "`a**b` **c**"],
    ["(**kwargs", "(**kwargs**"],
    ["这是**重要", "这是**重要**"],
    ["**a** ** **b", "**a** ** **b**"],
    ["- **a\n- **b", "- **a\n- **b**"],
    ["one **a\n\n**b", "one **a\n\n**b**"],
  ]) {
    assert.equal(completeTail(tail), completed);
  }
});

test("marks that open nothing are not closed", () => {
  for (const tail of [
    "2 ** 3 is 8",
    "2 **",
    "2**3 is 8",
    "x**2 + y**2 + z**2",
    "\\**a",
    "a **bold** and",
    "a **bold*",
    "- **a\n- b",
    "1. **a\n2. b",
    "one **a\n\nb",
    "```py\nx = 2 **y",
    "    2 **y",
  ]) {
    assert.equal(completeTail(tail), tail);
  }
});

test("emphasis opens and closes beside Chinese, Japanese and Korean punctuation", () => {
  for (const [text, html] of [
    ["**重要：**内容", "<strong>重要：</strong>内容"],
    ["内容**「重要」**内容", "内容<strong>「重要」</strong>内容"],
    ["*注：*内容", "<em>注：</em>内容"],
    ["***注：***内容", "<em><strong>注：</strong></em>内容"],
    ["**“重要”**内容", "<strong>“重要”</strong>内容"],
    ["**50%**的人", "<strong>50%</strong>的人"],
    ["**好👍**的", "<strong>好👍</strong>的"],
    ["**重要：**Text", "<strong>重要：</strong>Text"],
    ["Text**（重要）**Text", "Text<strong>（重要）</strong>Text"],
    ["**중요:**는", "<strong>중요:</strong>는"],
    ["**これは「例」。**次", "<strong>これは「例」。</strong>次"],
    ["**关键点：**`code`", "<strong>关键点：</strong><code>code</code>"],
    ["**甲：**乙**丙：**丁", "<strong>甲：</strong>乙<strong>丙：</strong>丁"],
    ["**甲：*乙*丙**", "<strong>甲：<em>乙</em>丙</strong>"],
    ["他说：**重要**，**很重要**。", "他说：<strong>重要</strong>，<strong>很重要</strong>。"],
    ["`**重要：**内容`", "<code>**重要：**内容</code>"],
    ["2 ** 3：** 4", "2 ** 3：** 4"],
    ["~~删除。~~内容", "<del>删除。</del>内容"],
    ["内容~~「删除」~~内容", "内容<del>「删除」</del>内容"],
    ["**注：**~~旧。~~新", "<strong>注：</strong><del>旧。</del>新"],
  ]) {
    assert.equal(renderBlock(text).trim(), `<p>${html}</p>`);
  }
});

test("emphasis beside other punctuation follows CommonMark", () => {
  for (const [text, html] of [
    ["**a:**b", "**a:**b"],
    ["a**(b)**c", "a**(b)**c"],
    ["**Note:** text", "<strong>Note:</strong> text"],
    ["**a*b*c", "**a<em>b</em>c"],
    ["snake_case_名", "snake_case_名"],
    ["a ~~b~~ c", "a <del>b</del> c"],
    ["3~5 or 7~9", "3~5 or 7~9"],
    ["~a~ b", "~a~ b"],
    ["约3~5个，7~9个", "约3~5个，7~9个"],
    ["a ~~3~5~~ 7~9", "a <del>3~5</del> 7~9"],
  ]) {
    assert.equal(renderBlock(text).trim(), `<p>${html}</p>`);
  }
});
