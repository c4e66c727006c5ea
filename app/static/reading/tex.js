// TeX to a tree of MathML, of which nothing is left but the elements, attributes and classes that are listed here. Model
// output is untrusted: macros cannot be defined, and length, depth and size are limited. No HTML is made or parsed.

const again = new URL(import.meta.url).search;
const { default: temml } = await import(import.meta.resolve("temml") + again);

const MAX_LENGTH = 4096;
const MAX_BRACES = 16;
const MAX_DEPTH = 64;
const MAX_NODES = 10_000;
const MAX_SIZE = 20;
const CLOSINGS = { "$$": "$$", $: "$", "\\(": "\\)", "\\[": "\\]" };

// Definitions, and commands whose cost doubles with each level.
const REFUSED =
  /\\(?:[egx]?def|(?:future)?let|(?:new|renew|provide)command|global|long|(?:math)?llap|cancelto|equilibrium\w*)(?![a-zA-Z])/;

const ELEMENTS = new Set(
  (
    "menclose mfrac mi mmultiscripts mn mo mover mpadded mphantom mprescripts mroot mrow ms mspace msqrt mstyle msub " +
    "msubsup msup mtable mtd mtext mtr munder munderover none"
  ).split(" "),
);
const ATTRIBUTES = new Set(
  (
    "accent accentunder depth displaystyle fence form height largeop linethickness lspace mathvariant maxsize minsize " +
    "movablelimits rspace scriptlevel separator stretchy symmetric voffset width"
  ).split(" "),
);
const CLASSES =
  /^(?:tml-(?:cancel|jot|left|overline|prime|right|small|tag|underline|xcancel|(?:hat|tilde)-[1-4])|downstrike|sout|upstrike)$/;

// The styles that the library wants inline, each as a class of maths.css.
/** @type {[RegExp, ...string[]][]} */
const STYLES = [
  [/^padding:0$/, "flush-left", "flush-right"],
  [/^padding-?left:0/i, "flush-left"],
  [/^padding-?right:0/i, "flush-right"],
  [/^padding-?left:1em/i, "wide-left"],
  [/^border:/, "boxed"],
  [/^math-?depth:0/i, "full-size"],
  [/^font-?weight:bold/i, "bold"],
  [/^width:100%/, "whole"],
  [/^width:50%/, "half"],
  [/^borderTop:/, "line-top"],
  [/^borderRight:/, "line-right"],
  [/^borderBottom:/, "line-bottom"],
  [/^borderLeft:/, "line-left"],
  [/^border\w+:.*dashed/, "dashed"],
  [/^border\w+:.*double/, "double"],
];

/**
 * @typedef {{name: string, attributes: Record<string, string>, classes: string[], children: (Part | string)[]}} Part
 */

/** The delimiter that ends a source, which may be incomplete; undefined if there is none. */
const closingOf = (source) => CLOSINGS[/^(?:\$\$?|\\[([])/.exec(source)?.[0]];

/** Whether a formula is short enough, and has its end. @param {string} source */
export function isWhole(source) {
  const closing = closingOf(source);
  return closing !== undefined && source.length <= MAX_LENGTH && source.endsWith(closing);
}

/**
 * The parts of a formula that is given with its delimiters; null if it is incomplete, wrong or refused.
 * @param {string} source
 * @returns {{isDisplay: boolean, parts: (Part | string)[]} | null}
 */
export function parseFormula(source) {
  if (!isWhole(source)) return null;
  const { length } = closingOf(source);
  const tex = source.slice(length, -length);
  if (!tex.trim() || REFUSED.test(tex) || numBraces(tex) > MAX_BRACES) return null;
  const isDisplay = /^(?:\$\$|\\\[)/.test(source);
  try {
    return { isDisplay, parts: partsOf(treeOf(tex, isDisplay).children, { left: MAX_NODES }, 0) };
  } catch {
    // Wrong TeX, too much recursion, or a `Refusal`.
    return null;
  }
}

class Refusal extends Error {}

const treeOf = (tex, displayMode) =>
  temml.__renderToMathMLTree(tex, {
    displayMode,
    wrap: displayMode ? "none" : "tex",
    throwOnError: true,
    trust: false,
    macros: {},
    maxExpand: 200,
    maxSize: [MAX_SIZE, MAX_SIZE],
  });

/** How deep the braces are nested. */
function numBraces(tex) {
  let [depth, most] = [0, 0];
  for (const [brace] of tex.matchAll(/\\[^]|[{}]/g)) {
    if (brace === "{") most = Math.max(most, ++depth);
    else if (brace === "}") depth--;
  }
  return most;
}

function partsOf(nodes, budget, depth) {
  if (depth > MAX_DEPTH) throw new Refusal();
  return nodes.flatMap((node) => {
    if (--budget.left < 0) throw new Refusal();
    if (node.text !== undefined) return [node.text];
    // A fragment or a span: only its contents count.
    if (!node.type) return partsOf(node.children, budget, depth + 1);
    if (!ELEMENTS.has(node.type)) throw new Refusal();
    const attributes = Object.fromEntries(Object.entries(node.attributes).filter(([name]) => ATTRIBUTES.has(name)));
    if (!Object.values(attributes).every(isPlain)) throw new Refusal();
    return [{ name: node.type, attributes, classes: classesOf(node), children: partsOf(node.children, budget, depth + 1) }];
  });
}

/** A word, or a length within bounds. */
const isPlain = (value) => /^-?[\w.]{1,20}%?$/.test(value) && !(Math.abs(parseFloat(value)) > 1.5 * MAX_SIZE);

function classesOf({ classes, style, attributes }) {
  const styles = Object.entries(style).map((entry) => entry.join(":")).concat(attributes.style ?? []);
  const known = classes.flatMap((name) => name.split(" ")).filter((name) => CLASSES.test(name));
  const matching = STYLES.filter(([pattern]) => styles.some((each) => pattern.test(each)));
  return [...known, ...matching.flatMap(([, ...names]) => names)];
}
