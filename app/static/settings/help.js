// What the settings do, and what is wrong with a value of one.

import { LABELS } from "../sampling/labels.js";
import { PARAMETERS } from "../sampling/parameters.js";
import { MAX_ANSWERS, MAX_STOP_LENGTH } from "../sampling/sampling.js";

/** @type {Record<string, string>} by the name of the field */
export const HELP = {
  ...Object.fromEntries(Object.entries(PARAMETERS).map(([name, { description }]) => [name, description])),
  system: "Instructions that stand before the conversation.",
  stop: `${PARAMETERS.stop.description} One a line, at most ${PARAMETERS.stop.maxItems}.`,
  thinking: "Whether the model reasons before it answers. Some models always do.",
  reasoning_effort: "How long the model reasons. Some models ignore it.",
  json_schema: 'Answers are JSON of this schema, such as {"type": "object", "properties": {"name": {"type": "string"}}}.',
  tools:
    "A list of functions that the model may call, such as " +
    '[{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]. You enter their results.',
  n:
    `Up to ${MAX_ANSWERS} answers to each question are written side by side, and you choose the one to go on with. They are the same with a ` +
    "temperature of 0.",
  token_probabilities:
    "Answers are shown token by token: those that were less probable are underlined, and each shows what else the model might " +
    "have written. The probabilities are those before temperature and the other settings.",
};

/** What a setting without a value means, if the server names no default. @type {Record<string, string>} */
export const UNSET = {
  system: "none",
  presence_penalty: "0",
  frequency_penalty: "0",
  seed: "random",
  max_tokens: "a quarter of the context",
  stop: "none",
  thinking: "the model's default",
  reasoning_effort: "the model's default",
  json_schema: "none",
  tools: "none",
  n: "1",
  token_probabilities: "off",
};

/**
 * What is wrong with a text that `parseField` refuses.
 * @param {import("../sampling/field_types.js").Field} field
 * @param {string} text
 */
export function complaint({ name, kind, min, max, isList }, text) {
  const label = LABELS[name];
  if (kind === "json") return `${label}: ${problemOfJson(text) ?? (isList ? "enter a list of objects, [{…}]." : "enter an object, {…}.")}`;
  if (kind === "lines") {
    const lines = text.split("\n").filter(Boolean);
    if (lines.length > max) return `${label}: ${lines.length} lines; at most ${max} are allowed.`;
    const long = lines.find((line) => line.length > MAX_STOP_LENGTH);
    return `${label}: “${[...long].slice(0, 20).join("")}…” has ${long.length} characters; at most ${MAX_STOP_LENGTH} are allowed.`;
  }
  const number = kind === "integer" ? "a whole number" : "a number";
  return `${label} is “${text.trim()}”; enter ${number}${rangeOf(min, max)}.`;
}

function rangeOf(min, max) {
  if (max < Number.MAX_SAFE_INTEGER) return ` from ${min} to ${max}`;
  return min > Number.MIN_SAFE_INTEGER ? ` of at least ${min}` : "";
}

/** What the browser says about a text that is not JSON. */
function problemOfJson(text) {
  try {
    JSON.parse(text);
    return null;
  } catch ({ message }) {
    return `this is not JSON yet. ${message}.`;
  }
}
