// How tokens and probabilities are written where they are told about.

// The pictures of the control characters begin here.
const PICTURES = 0x2400;
const NEWLINE = "↵";
const SPACE = "␣";

/** A token's text with signs for what is not seen: blanks at its ends, ends of lines, control characters. */
export function spell(text) {
  const seen = text.replace(/^ +| +$/g, (blanks) => SPACE.repeat(blanks.length)).replaceAll("\n", NEWLINE);
  return seen.replace(/[\u0000-\u001f]/g, (sign) => String.fromCodePoint(PICTURES + sign.codePointAt(0)));
}

/** A probability with as many digits as tell it from none and from certainty. */
export function formatProbability(p) {
  const percent = 100 * p;
  if (percent < 0.1) return "under 0.1 %";
  if (percent > 99.9 && percent < 100) return "over 99.9 %";
  return `${percent < 10 || (percent > 99 && percent < 100) ? percent.toFixed(1) : Math.round(percent)} %`;
}

/**
 * What is told of a token: in words, and what stood to choose, the most probable first.
 * @param {import("../tree/record_types.js").Token} token
 * @returns {{words: string, choices: {text: string, p: number, isChosen: boolean}[]}}
 */
export function describe({ text, p, top = [], numTokens, isEnd }) {
  if (p === undefined) return { words: "The probabilities of this part were not asked for.", choices: [] };
  if (numTokens) return { words: `${numTokens} tokens make this, together ${formatProbability(p)}.`, choices: [] };
  const own = { text, p, isChosen: true };
  const choices = [own, ...top.map((other) => ({ ...other, isChosen: false }))].sort((a, b) => b.p - a.p);
  return { words: isEnd ? "The answer ended here. Probabilities:" : "Probabilities here:", choices };
}
