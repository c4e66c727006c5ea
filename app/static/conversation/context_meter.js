// How much of the model's context the shown branch fills, in tokens that the server has counted.

import { html } from "../shell/html.js";
import { useGrowth } from "./growth.js";
import { makeRequest } from "./request.js";

const NEARLY_FULL = 0.85;
const TOO_LONG = ["context_length_exceeded", "kv_capacity_exceeded"];

/**
 * Tokens of the branch: those of the last answer with a count and its prompt, and those that arrived since. After a cut
 * they are an estimate from the length of the text, until undone cuts and older counts are out of the branch.
 * @param {any[]} messages
 * @param {Record<string, any>} settings
 */
export function tokensOf(messages, settings) {
  if (messages.some(({ keeps }) => keeps !== undefined)) {
    const next = [...messages, { role: "user", text: "" }];
    return Math.round(tokensPerCharacter(messages, settings) * numCharacters(next, settings));
  }
  const last = messages.at(-1);
  const counted = messages.findLast((message) => message.usage);
  const before = counted ? counted.usage.prompt_tokens + counted.usage.completion_tokens : 0;
  return before + (last && last !== counted && last.watch ? last.watch.tokens : 0);
}

/** Tokens per character in the request of the last answer with a count, and in the answer; 0 without one. */
export function tokensPerCharacter(messages, settings) {
  const at = messages.findLastIndex((message) => message.usage);
  if (at < 0) return 0;
  const { usage, text, reasoning = "" } = messages[at];
  const tokens = usage.prompt_tokens + usage.completion_tokens;
  return tokens / (numCharacters(messages.slice(0, at), settings) + text.length + reasoning.length);
}

const numCharacters = (path, settings) =>
  makeRequest(path, settings).messages.reduce((sum, { content }) => sum + content.length, 0);

/** Whether the server has refused the last message, because it and the conversation do not fit the context. */
export const isTooLong = (messages) => TOO_LONG.includes(messages.at(-1)?.code);

/** Whether the next question may find no room. */
export const isShort = ({ messages, settings }, size) =>
  isTooLong(messages) || tokensOf(messages, settings) > NEARLY_FULL * size;

export function ContextMeter({ conversation, size }) {
  useGrowth(conversation, Boolean(conversation.open));
  const used = tokensOf(conversation.messages, conversation.settings);
  if (!used || !size) return null;
  const format = (count) => count.toLocaleString("en");
  return html`
    <span class="context" data-full=${used > NEARLY_FULL * size} title="Tokens of this conversation, and of the model's context">
      <meter min="0" max=${size} value=${used} aria-label="Context used"></meter>
      ${format(used)} of ${format(size)} tokens
    </span>
  `;
}
