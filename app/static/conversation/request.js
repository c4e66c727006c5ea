// The body of the request for an answer: the messages of the branch, and the conversation's settings.

import { toFields } from "../settings/sampling.js";
import { isSummary, sentOf } from "./cut.js";
import { isResultOf, toCalls, toResults } from "./results.js";

// An answer must leave room for what follows, and not go in circles until it has filled its own.
const LIMITS = { context_share: 0.25, repetition_stop: true };
// Sent as a question where the server cannot continue an answer itself.
const GO_ON = "Continue exactly where you stopped. Repeat nothing.";

/**
 * @param {any[]} path the messages up to the question or, to continue an answer, up to that answer
 * @param {Record<string, any>} settings
 * @param {{canContinue?: boolean}} server what the server is able to do
 * @returns {Record<string, any>} an OpenAI chat body
 */
export function makeRequest(path, settings, { canContinue = true } = {}) {
  const { system, ...fields } = toFields(settings);
  const messages = [];
  if (system) messages.push({ role: "system", content: system });
  const sent = asked(sentOf(path));
  messages.push(...sent.flatMap((message, at) => toMessages(message, sent[at - 1], sent[at + 1])));
  const request = { messages, ...LIMITS, ...(path.slice(-2).some(isSummary) ? ofSummary(fields) : fields) };
  if (messages.at(-1)?.role !== "assistant") return request;
  if (canContinue) return { ...request, continue_final_message: true, add_generation_prompt: false };
  messages.push({ role: "user", content: GO_ON });
  return request;
}

/**
 * Fields without those that say what answers look like: a summary is plain text.
 * @param {Record<string, any>} fields
 */
const ofSummary = ({ response_format: _format, tools: _tools, stop: _stop, ...others }) => others;

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
