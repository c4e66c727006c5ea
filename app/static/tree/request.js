// The body of the request for an answer: the messages of the branch, and the conversation's settings.

import { toFields } from "../sampling/sampling.js";
import { isSummary, sentOf, summarizedOf } from "./cut.js";
import { isResultOf, toCalls, toResults } from "./results.js";
import { turnsOf } from "./turns.js";

// An answer must leave room for what follows, and not go in circles until it has filled its own.
const LIMITS = { context_share: 0.25, repetition_stop: true };
// Sent as a question where the server cannot continue an answer itself.
const GO_ON = "Continue exactly where you stopped. Repeat nothing.";

/**
 * What a request asks for.
 * @typedef {object} Kind
 * @property {(path: any[]) => any[]} messagesOf the messages that are sent for a branch
 * @property {(fields: Record<string, any>) => Record<string, any>} fieldsOf the request's fields, from those of the settings
 * @property {string} [asks] is asked behind the messages
 */

/** An answer to the last question. @type {Kind} */
export const ANSWER = { messagesOf: sentOf, fieldsOf: (fields) => fields };

// What says how answers look, and how many there are.
const OF_ANSWERS = ["response_format", "tools", "stop", "logprobs", "top_logprobs", "n"];

/** The summary that the last question asks for: one plain text, whatever answers must look like. @type {Kind} */
export const SUMMARY = { messagesOf: summarizedOf, fieldsOf: (fields) => without(fields, OF_ANSWERS) };

/** What the last question of a branch asks for. @param {any[]} path */
export const kindOf = (path) => (isSummary(turnsOf(path).at(-1)?.question) ? SUMMARY : ANSWER);

/**
 * The rest of the last answer of a branch; it is asked for where the server cannot continue an answer.
 * @param {any[]} path
 * @param {{canContinue: boolean}} server
 * @returns {Kind}
 */
export function restOf(path, { canContinue }) {
  const kind = kindOf(path);
  const goesOn = canContinue ? { continue_final_message: true, add_generation_prompt: false } : {};
  const fieldsOf = (fields) => ({ ...without(kind.fieldsOf(fields), ["n"]), ...goesOn });
  return { ...kind, fieldsOf, ...(!canContinue && { asks: GO_ON }) };
}

const without = (fields, names) => Object.fromEntries(Object.entries(fields).filter(([name]) => !names.includes(name)));

/**
 * @param {any[]} path the messages up to the question or, for the rest of an answer, up to that answer
 * @param {Record<string, any>} settings
 * @param {Kind} kind
 * @returns {Record<string, any>} an OpenAI chat body
 */
export function makeRequest(path, settings, { messagesOf, fieldsOf, asks }) {
  const { system, ...fields } = toFields(settings);
  const sent = asked(messagesOf(path));
  const messages = sent.flatMap((message, at) => toMessages(message, sent[at - 1], sent[at + 1]));
  if (system) messages.unshift({ role: "system", content: system });
  if (asks) messages.push({ role: "user", content: asks });
  return { messages, ...LIMITS, ...fieldsOf(fields) };
}

/** A message as OpenAI's; calls of tools and their results, of which there may be several, belong together. */
function toMessages(message, before, behind) {
  if (isResultOf(message, before)) return toResults(message);
  const sent = { role: message.role, content: contentOf(message) };
  return [isResultOf(behind, message) ? { ...sent, content: sent.content || null, tool_calls: toCalls(message) } : sent];
}

/** A message's text, after the text files that were attached to it, or the results of tools. */
export function contentOf({ text, files, results }) {
  const attached = [...(files ?? []), ...(results ?? [])].map((file) => `${file.name}:\n${fence(file.text)}`);
  return [...attached, text].filter(Boolean).join("\n\n");
}

/** Put a text into a code block, whose fence is longer than any in the text. */
function fence(text) {
  // Not as arguments of one call: there may be hundred thousands.
  const longest = (text.match(/`{3,}/g) ?? []).reduce((length, { length: each }) => Math.max(length, each), 2);
  const marks = "`".repeat(longest + 1);
  return `${marks}\n${text.replace(/\n$/, "")}\n${marks}`;
}

/** Without answers that have neither text nor calls with results, and their questions. */
function asked(path) {
  const kept = [];
  let isUnanswered = false;
  for (const message of path.toReversed()) {
    const isEmpty = message.role === "assistant" && !message.text && !isResultOf(kept[0], message);
    if (!isEmpty && !isUnanswered) kept.unshift(message);
    isUnanswered = isEmpty;
  }
  return kept;
}
