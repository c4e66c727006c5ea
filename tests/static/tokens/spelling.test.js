import assert from "node:assert/strict";
import test from "node:test";
import { describe, formatProbability, spell } from "../../../app/static/tokens/spelling.js";

test("what is not seen of a token has a sign", () => {
  assert.deepEqual(
    [" the", "a b", "\n\n", "  ", "\tif", "\u0000", "é🧵", ""].map(spell),
    ["␣the", "a b", "↵↵", "␣␣", "␉if", "␀", "é🧵", ""],
  );
});

test("a probability has the digits that tell it from none and from certainty", () => {
  assert.deepEqual(
    [1, 0.99951, 0.9949, 0.62, 0.0999, 0.034, 0.001, 0.0009, 0].map(formatProbability),
    ["100 %", "over 99.9 %", "99.5 %", "62 %", "10.0 %", "3.4 %", "0.1 %", "under 0.1 %", "under 0.1 %"],
  );
});

test("what stood to choose is told from the most probable on, whether it was chosen or not", () => {
  const { words, choices } = describe({ text: " a", p: 0.2, top: [{ text: " the", p: 0.7 }, { text: " an", p: 0.05 }] });
  assert.equal(words, "Probabilities here:");
  assert.deepEqual(choices.map(({ text, isChosen }) => [text, isChosen]), [[" the", false], [" a", true], [" an", false]]);
});

test("of several tokens as one, and of text without probabilities, there is nothing to choose", () => {
  assert.deepEqual(describe({ text: "🧵", p: 0.2, numTokens: 3 }), { words: "3 tokens make this, together 20 %.", choices: [] });
  assert.deepEqual(describe({ text: "Once" }).choices, []);
  assert.match(describe({ text: "<end>", p: 0.5, isEnd: true }).words, /ended/);
});
