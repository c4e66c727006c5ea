import assert from "node:assert/strict";
import test from "node:test";
import { parseFormula } from "../../../app/static/reading/tex.js";
import { numLookedAt } from "./looked_at.js";

/** All parts of a formula, outermost first; null if it is refused. */
function partsOf(source) {
  const formula = parseFormula(source);
  const flat = (parts) => parts.flatMap((part) => (typeof part === "string" ? [] : [part, ...flat(part.children)]));
  return formula && flat(formula.parts);
}

const namesOf = (source) => partsOf(source).map(({ name }) => name);
const classesOf = (source) => partsOf(source).flatMap(({ classes }) => classes);

test("TeX becomes the elements of MathML", () => {
  assert.deepEqual(namesOf("$\\frac{a}{b}$"), ["mfrac", "mi", "mi"]);
  assert.deepEqual(namesOf("\\(x^2\\)"), ["msup", "mi", "mn"]);
  assert.ok(namesOf("$$\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}$$").includes("mtable"));
});

test("the delimiters say whether a formula stands alone", () => {
  assert.deepEqual(["$x$", "\\(x\\)", "$$x$$", "\\[x\\]"].map((source) => parseFormula(source).isDisplay), [false, false, true, true]);
});

test("inline styles become classes", () => {
  assert.deepEqual(new Set(classesOf("$$\\begin{cases}a&b\\end{cases}$$")), new Set(["tml-left", "flush-left", "flush-right", "wide-left"]));
  assert.ok(classesOf("$$\\begin{array}{c|c}a&b\\\\\\hline c&d\\end{array}$$").includes("line-right"));
  assert.ok(classesOf("$\\boxed{x}$").includes("boxed"));
  for (const part of partsOf("$$\\color{red}\\boxed{x}\\pmb{y}\\tag{1}$$")) {
    assert.equal(part.attributes.style, undefined);
    assert.equal(part.attributes.mathcolor, undefined);
  }
});

test("what is open, empty, wrong or mismatched is refused", () => {
  for (const source of ["$$x", "$$ $$", "$\\frac{a$", "$\\unknown$", "\\(x\\]", "x", "$$\nx $y$"]) {
    assert.equal(parseFormula(source), null, source);
  }
});

test("commands that link, load, run, define or label are refused or leave nothing", () => {
  for (const tex of [
    "\\href{https://evil.example}{x}",
    "\\href{javascript:alert(1)}{x}",
    "\\url{https://evil.example}",
    "\\includegraphics{https://evil.example/x.png}",
    "\\htmlClass{dock}{x}",
    "\\htmlId{app}{x}",
    "\\htmlStyle{position:fixed}{x}",
    "\\htmlData{a=b}{x}",
    "\\class{dock}{x}",
    "\\data{a=b}{x}",
    "\\toggle{a}{b}\\endtoggle",
    "\\texttip{a}{b}",
    "\\def\\a{b}\\a",
    "\\gdef\\a{b}\\a",
    "\\let\\a=b\\a",
    "\\newcommand{\\a}{b}\\a",
    "\\renewcommand\\frac{b}",
    "\\llap{x}",
  ]) {
    assert.equal(parseFormula(`$${tex}$`), null, tex);
  }
  for (const part of partsOf("$$x \\label{app}\\tag{1}$$")) assert.equal(part.attributes.id, undefined);
});

test("a formula defines nothing for the next one", () => {
  parseFormula("$\\global\\def\\evil{x}$");
  parseFormula("$\\@ifnextchar x{\\gdef\\evil{x}}{}$");
  assert.equal(parseFormula("$\\evil$"), null);
});

test("sizes have bounds", () => {
  for (const tex of ["\\rule{9999em}{9999em}x", "\\hspace{9999em}x", "\\raisebox{9999em}{x}"]) {
    const lengths = (partsOf(`$${tex}$`) ?? []).flatMap(({ attributes }) => Object.values(attributes)).map(parseFloat);
    assert.ok(lengths.every((length) => !(Math.abs(length) > 60)), tex);
  }
  assert.equal(parseFormula("$\\raisebox{-9999em}{x}$"), null);
});

test("long, deep and costly formulas are refused after bounded work", () => {
  const nested = (open, close, times) => `$$${open.repeat(times)}x${close.repeat(times)}$$`;
  const refused = [];
  const refuse = (source) => refused.push(parseFormula(source));
  const most = 20_000;
  for (const [open, close] of [
    ["{", "}"],
    ["\\frac{", "}{y}"],
    ["\\sqrt{", "}"],
    ["x^{", "}"],
    ["\\left(", "\\right)"],
    ["\\begin{matrix}", "\\end{matrix}"],
    ["\\cancelto{x}{", "}"],
    ["\\cancelto{", "}{x}"],
    ["\\mathllap{", "}"],
    ["\\equilibriumLeft{", "}"],
    ["\\text{$", "$}"],
  ]) {
    for (const times of [100, 400]) {
      const count = numLookedAt(() => refuse(nested(open, close, times)), most);
      assert.ok(count < most, `${open}: ${count}`);
    }
  }
  refuse(`$${"x".repeat(5000)}$`);
  assert.equal(refused.filter(Boolean).length, 0);
});
