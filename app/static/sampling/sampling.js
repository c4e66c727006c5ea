// The settings of a conversation: which values are allowed, and the request fields they become. Only what differs from the
// server's defaults is stored and sent. labels.js has their names, parameters.js what the server says of its parameters.

import { PARAMETERS } from "./parameters.js";
import { JSON_FIELDS, isJson, toJsonFields } from "./structure.js";

// Of the most probable tokens, five.
const PROBABILITIES = { logprobs: true, top_logprobs: 5 };

const NUMBERS = Object.keys(PARAMETERS).filter((name) => PARAMETERS[name].minimum !== undefined);

/**
 * A number in the server's range, as far as JavaScript's integers are exact.
 * @param {string} name
 * @returns {import("./field_types.js").Field}
 */
const numberField = (name) => {
  const { type, minimum, maximum } = PARAMETERS[name];
  const kind = type === "integer" ? "integer" : "number";
  const min = Math.max(minimum, Number.MIN_SAFE_INTEGER);
  return { name, kind, min, max: Math.min(maximum, Number.MAX_SAFE_INTEGER) };
};

/** The most answers to one question. */
export const MAX_ANSWERS = 4;

/** @type {import("./field_types.js").Field[]} */
export const FIELDS = [
  { name: "system", kind: "text" },
  ...NUMBERS.map(numberField),
  { name: "stop", kind: "lines", max: PARAMETERS.stop.maxItems },
  { name: "thinking", kind: "choice", choices: ["on", "off"], needs: "reasoning" },
  { name: "reasoning_effort", kind: "choice", choices: ["minimal", "low", "medium", "high"], needs: "reasoning" },
  ...JSON_FIELDS,
  { name: "n", kind: "integer", min: 1, max: MAX_ANSWERS },
  { name: "token_probabilities", kind: "choice", choices: ["on"] },
];

/** The longest stop string. */
export const MAX_STOP_LENGTH = PARAMETERS.stop.maxLength;

/**
 * Read what the user has entered into a field.
 * @param {typeof FIELDS[number]} field
 * @param {string} text
 * @returns {{value?: any, isWrong?: boolean}} neither: the setting has no value
 */
export function parseField(field, text) {
  const value = valueOf(field, text);
  if (value === undefined) return {};
  return isAllowed(field, value) ? { value } : { isWrong: true };
}

function valueOf({ kind }, text) {
  const lines = text.split("\n").filter(Boolean);
  if (kind === "lines") return lines.length ? lines : undefined;
  if (!text.trim()) return undefined;
  return ["text", "choice", "json"].includes(kind) ? text : Number(text.trim().replace(",", "."));
}

/** @param {import("./field_types.js").Field} field @param {any} value */
function isAllowed(field, value) {
  const { kind, min, max, choices } = field;
  if (kind === "text") return true;
  if (kind === "json") return isJson(field, value);
  if (kind === "choice") return choices.includes(value);
  if (kind === "lines") return value.length <= max && value.every((line) => line.length <= MAX_STOP_LENGTH);
  const isNumber = kind === "integer" ? Number.isInteger(value) : Number.isFinite(value);
  return isNumber && !(value < min || value > max);
}

/** A setting's value as the text of its input. */
export const formatField = (value) => (Array.isArray(value) ? value.join("\n") : String(value ?? ""));

/**
 * The settings without unknown names and values that the fields do not allow, as in imported files.
 * @param {Record<string, any>} settings
 */
export function cleanSettings(settings) {
  const entries = FIELDS.map((field) => [field.name, parseField(field, formatField(settings?.[field.name])).value]);
  return Object.fromEntries(entries.filter(([, value]) => value !== undefined));
}

/**
 * The request's fields; `system` is the text of the system message.
 * @param {Record<string, any>} settings
 * @returns {Record<string, any>}
 */
export function toFields(settings) {
  const { thinking, json_schema, tools, token_probabilities: hasProbabilities, ...sampling } = cleanSettings(settings);
  const fields = { ...sampling, ...toJsonFields({ json_schema, tools }) };
  if (hasProbabilities) Object.assign(fields, PROBABILITIES);
  if (thinking) fields.chat_template_kwargs = { enable_thinking: thinking === "on" };
  return fields;
}
