// Formulas as MathML, made of elements and never of HTML. This module, its styles and its library are loaded with the
// first formula.

// After a failure all are loaded from other addresses, see `retrying`.
const again = new URL(import.meta.url).search;
/** @type {typeof import("./tex.js")} */
const { isWhole, parseFormula } = await import("./tex.js" + again);

const MATHML = "http://www.w3.org/1998/Math/MathML";
const MAX_KEPT = 4000;

/**
 * By their sources, the oldest first; an open block shows its formulas with every frame, and may have thousands. The source
 * of an open formula is another one with each frame, and is not kept.
 * @type {Map<string, HTMLElement | null>}
 */
export const made = new Map();

/** Replace the source of a formula by what it means; what is incomplete or wrong stays. @param {Element} code */
export function typeset(code) {
  const formula = formulaOf(code.textContent);
  if (formula) code.replaceWith(formula.cloneNode(true));
}

function formulaOf(source) {
  if (!isWhole(source)) return null;
  if (!made.has(source)) {
    if (made.size >= MAX_KEPT) made.delete(made.keys().next().value);
    made.set(source, makeFormula(source));
  }
  return made.get(source);
}

function makeFormula(source) {
  const formula = parseFormula(source);
  if (!formula) return null;
  const frame = document.createElement("span");
  frame.className = formula.isDisplay ? "maths display" : "maths";
  frame.dir = "ltr";
  // It may be wider than the column.
  if (formula.isDisplay) frame.tabIndex = 0;
  const attributes = formula.isDisplay ? { display: "block" } : {};
  frame.append(toElement({ name: "math", attributes, classes: [], children: formula.parts }));
  return frame;
}

/** @param {import("./tex.js").Part | string} part */
function toElement(part) {
  if (typeof part === "string") return document.createTextNode(part);
  const element = document.createElementNS(MATHML, part.name);
  for (const [name, value] of Object.entries(part.attributes)) element.setAttribute(name, value);
  if (part.classes.length) element.setAttribute("class", part.classes.join(" "));
  element.append(...part.children.map(toElement));
  return element;
}
