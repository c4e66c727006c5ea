import assert from "node:assert/strict";
import test from "node:test";
import { Announced } from "../../../app/static/reading/announced.js";

/** What is told when a text arrives in these pieces. */
function tell(pieces, begun = "") {
  const announced = new Announced(begun);
  let text = begun;
  const told = pieces.map((piece) => announced.next((text += piece)));
  return [...told, announced.next(text, true)];
}

test("only complete sentences and lines are told, the rest at the end", () => {
  assert.deepEqual(tell(["It costs 3.50 eu"]), ["", "It costs 3.50 eu"]);
  assert.deepEqual(tell(["It costs 3.50. And th", "at is it."]), ["It costs 3.50.", "", "And that is it."]);
  assert.deepEqual(tell(["- a line\n- another"]), ["- a line", "- another"]);
  assert.deepEqual(tell(["はい。いい", "え。"]), ["はい。", "いいえ。", ""]);
  assert.deepEqual(tell([""]), ["", ""]);
});

test("every sentence is told once, however the text arrives", () => {
  const text = "One. Two? `a. b` is code. See [the page. Now](https://example.org/a. b).\n\n```js\nx = 2 ** 3; // a. b\n\ny\n```\nEnd.\n";
  const whole = tell([text]).filter(Boolean).join(" ").replace(/\s+/g, " ");
  for (let size = 1; size < text.length; size += 1) {
    const pieces = text.match(new RegExp(`[^]{1,${size}}`, "g"));
    assert.equal(tell(pieces).filter(Boolean).join(" ").replace(/\s+/g, " "), whole, `pieces of ${size}`);
  }
});

test("a continued answer begins with a sentence, and tells none again that was complete", () => {
  assert.deepEqual(tell([" word. Next."], "All of this. The last"), ["The last word.", "Next."]);
  assert.deepEqual(tell(["b**\n", "```\nAfter."], "Text.\n```py\na **"), ["a **b**", "", "After."]);
});

test("marks of Markdown are not spoken", () => {
  const spoken = (text) => tell([text]).filter(Boolean).join("\n");
  assert.equal(spoken("## The **first** `step`\n> See [the **page**](https://example.org/a_b)."), "The first step\nSee the page.");
  assert.equal(spoken("3 * 4 > 5 # no heading"), "3 * 4 > 5 # no heading");
});

test("code is told as it is", () => {
  const spoken = (text) => tell([text]).filter(Boolean).join("\n");
  assert.equal(spoken("```python\na_b = 2 ** 3\n# `not` __a__ heading\n```\n"), "a_b = 2 ** 3\n# `not` __a__ heading");
  assert.equal(spoken("Call `__init__` and ``a`b``."), "Call __init__ and a`b.");
  assert.equal(spoken("~~~\n```\n**\n~~~\n**Done**"), "```\n**\nDone");
});

test("formulas and tables are told without their marks", () => {
  const spoken = (text) => tell([text]).filter(Boolean).join("\n");
  assert.equal(spoken("The mass $m_1$ costs $5 and $6."), "The mass m_1 costs $5 and $6.");
  assert.equal(spoken("So \\(x > 0\\).\n$$\nE = mc^2\n$$\n---\n"), "So x > 0.\nE = mc^2");
  assert.equal(spoken("| a | b. c |\n|---|:-:|\n| `x` | **2** |\n"), "a, b. c\nx, 2");
  assert.deepEqual(tell(["| One. ", "Two | 3 |\n"]), ["", "One. Two, 3", ""]);
  assert.equal(spoken('See [Foo](https://example.org/Foo_(bar)) and [a [b](https://example.org "c d").'), "See Foo and [a b.");
});

test("hostile lines are told in a moment", () => {
  for (const [part, count] of [["`", 2e5], ["[", 2e5], ["[](x", 5e4], ["[](x(y", 5e4], ['[](a "', 5e4], ["`a``b", 5e4], ["|-", 1e5], ["$a", 1e5]]) {
    const begin = process.cpuUsage(); // other programs take none of it
    tell([`${part.repeat(count)}x`]);
    const { user, system } = process.cpuUsage(begin);
    assert.ok(user + system < 2_000_000, part);
  }
});
