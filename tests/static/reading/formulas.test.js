import assert from "node:assert/strict";
import test from "node:test";
import { BlockStream, renderBlock, splitBlocks } from "../../../app/static/reading/blocks.js";
import { numLookedAt } from "./looked_at.js";

/** The sources of the formulas in a text, in order. */
function formulasOf(text) {
  const html = splitBlocks(text).blocks.map((block) => renderBlock(block)).join("");
  return [...html.matchAll(/<code class="formula">([^]*?)<\/code>/g)].map(([, source]) => source);
}

test("formulas are found by their delimiters, anywhere in a text", () => {
  assert.deepEqual(formulasOf("If $x_1$ and \\(y_2\\), then \\[z\\] or $$w$$."), ["$x_1$", "\\(y_2\\)", "\\[z\\]", "$$w$$"]);
  assert.deepEqual(formulasOf("- **so $a*b$**\n- *and $c*d$*\n\n| $t$ |\n|---|\n| $u$ |"), ["$a*b$", "$c*d$", "$t$", "$u$"]);
  assert.deepEqual(formulasOf("$a\\$b$ and $\\text{a}$, the $n$th"), ["$a\\$b$", "$\\text{a}$", "$n$"]);
  assert.deepEqual(formulasOf("设$x$为，$A$ 5 times, all $k$s: **$y$**-$z$"), ["$x$", "$A$", "$k$", "$y$", "$z$"]);
});

test("prices, variables of a shell, and escaped delimiters are text", () => {
  for (const text of [
    "It costs $5 and $10.",
    "from $5-$10",
    "$ 5 and 6$",
    "Set $HOME and `$PATH`.",
    "a \\$x\\$ b",
    "\\\\(x\\\\)",
    "an open $x",
    "$5, or US$ 6",
    "US$5, or CA$6",
    "**US$5** or A$",
    "PATH=$HOME:$PATH",
    "a$b$ and 5$ or 6$.",
    "$a$b",
    "$$ and $$$ restaurants",
  ]) {
    assert.deepEqual(formulasOf(text), [], text);
  }
});

test("code contains no formulas", () => {
  for (const text of ["`$x$`", "``a \\(x\\)``", "```\n$$\nx\n$$\n```", "    $x$", "```sh\necho $A$B"]) {
    assert.deepEqual(formulasOf(text), [], text);
  }
});

test("a formula on lines of its own may contain what is a list or a heading elsewhere", () => {
  assert.deepEqual(formulasOf("so\n$$\na\n- b\n= c\n$$\nand"), ["$$\na\n- b\n= c\n$$"]);
  assert.deepEqual(formulasOf("\\[ a\n+ b \\]\n"), ["\\[ a\n+ b \\]"]);
  assert.deepEqual(formulasOf("1. one\n   $$\n   x\n   $$\n2. two"), ["$$\nx\n$$"]);
  assert.deepEqual(formulasOf("$$\nx\n$$.\nwhere"), ["$$\nx\n.$$"]);
  assert.equal(splitBlocks("\\[x\\] is **it**").blocks.join("|"), "\\[x\\] |is **it**");
});

test("an open formula is shown as its source, and ends at a blank line", () => {
  assert.deepEqual(formulasOf("$$\na_1 + b_1"), ["$$\na_1 + b_1"]);
  assert.deepEqual(formulasOf("$$\na\n\nA paragraph with $x$."), ["$$\na", "$x$"]);
});

test("the source is escaped", () => {
  assert.deepEqual(formulasOf("$a<b>&\"$"), ["$a&lt;b&gt;&amp;&quot;$"]);
});

test("a block with a formula closes when the next block begins", () => {
  const text = "so\n\n$$\na\n- b\n$$\n\nand $x$\n\nend\n";
  for (const size of [1, 3, 100]) {
    const stream = new BlockStream();
    const closed = [];
    for (let end = size; end < text.length + size; end += size) closed.push(...stream.update(text.slice(0, end)).closed);
    assert.deepEqual(closed, splitBlocks(text).blocks.slice(0, -1), `${size}`);
  }
});

test("twice as much text takes twice as much work, whatever is open in it", () => {
  const pieces = ["$", "$x ", "\\(", "\\[", "$$", "\\\\(", "$$\n", "$$\n\n", "\\[\n", "\\[\n\n", "\\[x\\]\n", "a\n\n", "a\n# b\n", "- a\nb\n"];
  for (const piece of pieces) {
    const work = (times) => numLookedAt(() => splitBlocks(piece.repeat(times)));
    const [once, twice] = [work(1000), work(2000)];
    assert.ok(twice < 2.2 * once, `${JSON.stringify(piece)}: ${once}, then ${twice}`);
  }
});

test("within a paragraph, too", () => {
  for (const piece of ["$", "$x ", "a$b$ ", "$b$ ", "A$ 5 ", "\\(", "\\[", "$$", "\\\\("]) {
    const work = (times) => numLookedAt(() => renderBlock(piece.repeat(times)));
    const [once, twice] = [work(1000), work(2000)];
    assert.ok(twice < 2.2 * once, `${JSON.stringify(piece)}: ${once}, then ${twice}`);
  }
});
