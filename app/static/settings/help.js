// What the settings are called and do, and what is wrong with a value of one.

import { MAX_STOP_LENGTH } from "./sampling.js";

/** @type {Record<string, string>} by the name of the field */
export const LABELS = {
  system: "System prompt",
  temperature: "Temperature",
  top_p: "Top-p",
  top_k: "Top-k",
  min_p: "Min-p",
  repetition_penalty: "Repetition penalty",
  presence_penalty: "Presence penalty",
  frequency_penalty: "Frequency penalty",
  seed: "Seed",
  max_tokens: "Max tokens",
  stop: "Stop strings",
  thinking: "Thinking",
  reasoning_effort: "Thinking effort",
  json_schema: "JSON schema",
  tools: "Tools",
};

/** @type {Record<string, string>} by the name of the field */
export const HELP = {
  system: "Instructions that stand before the conversation.",
  temperature: "0 always takes the likeliest token; higher values vary more.",
  top_p: "Only the likeliest tokens that together have this probability. 1 allows all.",
  top_k: "Only this many of the likeliest tokens. 0 allows all.",
  min_p: "Only tokens at least this likely, relative to the likeliest. 0 allows all.",
  repetition_penalty: "Above 1, tokens of the prompt and the answer become less likely.",
  presence_penalty: "Above 0, tokens that are in the answer already become less likely.",
  frequency_penalty: "Above 0, tokens become less likely with each time they are in the answer.",
  seed: "The same seed, settings and messages give the same answer.",
  max_tokens: "The longest answer.",
  stop: "One a line, at most 4. The answer ends before any of them.",
  thinking: "Whether the model reasons before it answers. Not every model can.",
  reasoning_effort: "How long the model reasons. Not every model can.",
  json_schema: 'Answers are JSON of this schema, such as {"type": "object", "properties": {"name": {"type": "string"}}}.',
  tools:
    "A list of functions that the model may call, such as " +
    '[{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]. You enter their results.',
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
};

/**
 * What is wrong with a text that `parseField` refuses.
 * @param {import("./field_types.js").Field} field
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
  return `${label} is “${text.trim()}”; enter ${number} from ${min} to ${max}.`;
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
