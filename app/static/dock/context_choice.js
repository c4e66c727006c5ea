// What can be done when the context is nearly full: drop the oldest turns, or let the model summarize them; of a message that
// is too long alone, that it must be shorter.

import { html } from "../parts/html.js";
import { isOpen } from "../tree/answer.js";
import { isSummary, isTyped } from "../tree/cut.js";
import { divide, dropIn } from "../tree/division.js";
import { SUMMARY, contentOf } from "../tree/request.js";
import { isShort, isTooLong, numCharacters, tokensPerCharacter } from "./context_meter.js";

const SUMMARIZE =
  "Summarize our conversation so far, so that it can go on from the summary alone: facts, names, numbers, decisions, " +
  "code that is still needed, and open questions. Be brief, use the language of the conversation, and write only the summary.";
// The part of the context that a summary may need.
const SUMMARY_ROOM = 1 / 8;

/** Nothing while there is room. */
export function ContextChoice({ conversation, link, actions }) {
  const { messages } = conversation;
  const size = link.details.max_model_len;
  if (!isShort(conversation, size)) return null;
  const alone = tokensAlone(conversation);
  if (alone > size) return html`<${TooLongAlone} tokens=${alone} size=${size} />`;
  const { numTurns, from, end } = divideConversation(conversation, size);
  if (!numTurns) return null;
  const act = (change) => {
    change();
    actions.goToEnd();
  };
  const drop = () => conversation.change((tree, head) => dropIn(tree, head, { at: end - 1, from }));
  const turns = numTurns === 1 ? "the oldest turn" : `the oldest ${numTurns} turns`;
  const [they, them] = numTurns === 1 ? ["It stays", "it"] : ["They stay", "them"];
  const hasRoom = canSummarize(conversation, from, size);
  const isDisabled = !link.isReady || isOpen(messages.at(-1));
  return html`
    <div class="context-choice" role="status">
      <p>${reasonOf(messages)} Leave out ${turns}? ${they} here, and can be sent again.
        ${hasRoom || ` There is no room to let the model summarize ${them}.`}</p>
      <span class="context-buttons">
        <button type="button" class="quiet" onClick=${() => act(drop)}>Drop</button>
        ${hasRoom && html`
          <button type="button" class="quiet" disabled=${isDisabled}
            onClick=${() => act(() => conversation.summarize(SUMMARIZE, from))}>Summarize</button>`}
      </span>
    </div>
  `;
}

/** No turn that is left out makes room for such a message. */
function TooLongAlone({ tokens, size }) {
  const format = (count) => Math.ceil(count).toLocaleString("en");
  return html`
    <div class="context-choice" role="status">
      <p>Your message alone is too long: with the system prompt it has about ${format(tokens)} tokens,
        ${` ${format(tokens - size)}`} more than the model's context of ${format(size)}. Shorten it, or attach only the part that you need.</p>
    </div>
  `;
}

/** About how many tokens the next message has, or one that was refused and is not back in the field, with the system prompt. */
export function tokensAlone({ messages, settings, draft }) {
  const isRefused = isTooLong(messages) && !messages.at(-1).isReturned && isTyped(messages.at(-2));
  const content = contentOf(isRefused ? messages.at(-2) : draft);
  return tokensPerCharacter(messages, settings) * (content.length + (settings.system ?? "").length);
}

function reasonOf(messages) {
  if (!isTooLong(messages)) return "The model's context is nearly full.";
  return isSummary(messages.at(-2))
    ? "The summary does not fit the model's context."
    : "Your message does not fit beside the conversation.";
}

/** Whether the messages before index `from`, the instruction and a summary fit the context together. */
export function canSummarize({ messages, settings }, from, size) {
  if (isTooLong(messages) && isSummary(messages.at(-2))) return false;
  const perCharacter = tokensPerCharacter(messages, settings);
  const asked = [...messages.slice(0, from), { role: "user", text: "", keeps: 1 }];
  // English text has less than one token per character; the conversation may be in another script.
  const instruction = Math.min(1, perCharacter) * SUMMARIZE.length;
  return perCharacter * numCharacters(asked, settings, SUMMARY) + instruction + SUMMARY_ROOM * size <= size;
}

/** The kept turns take at most half of the context, and leave room for the draft and the longest answer. */
function divideConversation({ messages, settings, draft }, size) {
  const perCharacter = tokensPerCharacter(messages, settings);
  const costOf = (message) => perCharacter * contentOf(message).length;
  const taken = costOf(draft) + costOf({ text: settings.system ?? "", files: [] });
  return divide(messages, Math.min(size / 2, size - (settings.max_tokens ?? 0)) - taken, costOf);
}
