// How much of the model's context the shown branch fills, in tokens that the server has counted.

import { html } from "../parts/html.js";
import { ANSWER, kindOf, makeRequest } from "../tree/request.js";
import { useGrowth } from "../turns/growth.js";

// An answer takes at most this part of the context, unless the user has set another limit.
const ROOM = 1 / 4;
// A template may leave out earlier turns, as that of guide does.
const MEANING = "Tokens of the last answer and of what the model has read for it, and of the model's context";
const TOO_LONG = ["context_length_exceeded", "kv_capacity_exceeded"];

/**
 * Tokens of the branch: those of the last answer with a count and its prompt, and those of the last answer since, with
 * what it continues. After a cut
 * they are an estimate from the length of the text, until undone cuts and older counts are out of the branch.
 * @param {any[]} messages
 * @param {Record<string, any>} settings
 */
export function tokensOf(messages, settings) {
  if (messages.some(({ keeps }) => keeps !== undefined)) {
    const next = [...messages, { role: "user", text: "" }];
    return Math.round(tokensPerCharacter(messages, settings) * numCharacters(next, settings, ANSWER));
  }
  const last = messages.at(-1);
  const { begunUsage, watch } = last ?? {};
  // The count of the answer that is continued has its prompt, too.
  if (begunUsage && !last.usage) return sumOf(begunUsage) + watch.tokens - watch.begun;
  const counted = messages.findLast((message) => message.usage);
  const tokens = (watch ?? last?.figures)?.tokens ?? 0;
  return (counted ? sumOf(counted.usage) : 0) + (last === counted ? 0 : tokens);
}

const sumOf = ({ prompt_tokens: prompt, completion_tokens: completion }) => prompt + completion;

/** Tokens per character in the request of the last answer with a count, and in the answer; 0 without one. */
export function tokensPerCharacter(messages, settings) {
  const at = messages.findLastIndex((message) => message.usage);
  if (at < 0) return 0;
  const { usage, text, reasoning = "" } = messages[at];
  const before = messages.slice(0, at);
  return sumOf(usage) / (numCharacters(before, settings, kindOf(before)) + text.length + reasoning.length);
}

/** Characters of the request for the end of a branch; an answer may consist of calls alone. */
export const numCharacters = (path, settings, kind) =>
  makeRequest(path, settings, kind).messages.reduce((sum, { content, tool_calls: calls }) =>
    sum + (content ?? "").length + (calls ? JSON.stringify(calls).length : 0), 0);

/** Whether the server has refused the last message, because it and the conversation do not fit the context. */
export const isTooLong = (messages) => TOO_LONG.includes(messages.at(-1)?.code);

/** Whether the next answer may find no room: a summary still fits then, if the newest turn is kept. */
const isNearlyFull = (tokens, { max_tokens: longest = 0 }, size) =>
  tokens + Math.max(ROOM * size, Math.min(longest, size / 2)) > size;

/** Whether the next question or its answer may find no room. */
export const isShort = ({ messages, settings }, size) =>
  isTooLong(messages) || isNearlyFull(tokensOf(messages, settings), settings, size);

export function ContextMeter({ conversation, size }) {
  useGrowth(conversation, Boolean(conversation.open));
  const used = tokensOf(conversation.messages, conversation.settings);
  if (!used || !size) return null;
  const format = (count) => count.toLocaleString("en");
  return html`
    <span class="context" data-full=${isNearlyFull(used, conversation.settings, size)} title=${MEANING}>
      <meter min="0" max=${size} value=${used} aria-label="Context used"></meter>
      ${format(used)} of ${format(size)} tokens
    </span>
  `;
}
