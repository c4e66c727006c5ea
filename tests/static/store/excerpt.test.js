import assert from "node:assert/strict";
import test from "node:test";
import { excerptOf, patternOf, wordsOf } from "../../../app/static/store/excerpt.js";

test("an excerpt has every second part from the words, as they are written in the text", () => {
  assert.deepEqual(excerptOf("With Yeast and salt.", wordsOf("YEAST salt")), ["With ", "Yeast", " and ", "salt", "."]);
  assert.deepEqual(excerptOf("Straßenbahn, Σίσυφος", wordsOf("ßen")), ["Stra", "ßen", "bahn, Σίσυφος"]);
  assert.deepEqual(excerptOf("(a+b)* [c] \\d", wordsOf("b)*")), ["(a+", "b)*", " [c] \\d"]);
});

test("a long text is cut around the longest of its words, between words where it can", () => {
  const text = `${"the first part of it ".repeat(20)}yeast${" and the rest".repeat(20)}`;
  const excerpt = excerptOf(text, wordsOf("the yeast")).join("");
  assert.match(excerpt, /^…of it the first part of it yeast and the rest .*…$/);
  assert.ok(excerpt.length <= 98, `${excerpt.length}`);
});

test("an excerpt has no halves of characters, no lines and no marks of Markdown", () => {
  const excerpt = excerptOf("😀".repeat(100) + "word" + "😀".repeat(100), ["word"]).join("");
  assert.ok(excerpt.isWellFormed());
  assert.equal(excerptOf("## A **loaf**\n\nis `made`\n- of\n  * flour", ["loaf"]).join(""), "A loaf is made of flour");
});

test("a text in which capital letters take another room is shown from its beginning", () => {
  assert.deepEqual(excerptOf("İstanbul", wordsOf("İstanbul")), ["İstanbul"]);
});

test("of words that begin alike the longer one is marked", () => {
  assert.deepEqual("bakery".split(patternOf(wordsOf("bake bakery"))), ["", "bakery", ""]);
});
