// What can be done when the context is nearly full: drop the oldest turns, or let the model summarize them.

import { html } from "../shell/html.js";
import { isOpen } from "./answer.js";
import { isShort, isTooLong, tokensPerCharacter } from "./context_meter.js";
import { isSummary } from "./cut.js";
import { contentOf } from "./request.js";
import { divide } from "./turns.js";

const SUMMARIZE =
  "Summarize our conversation so far, so that it can go on from the summary alone: facts, names, numbers, decisions, " +
  "code that is still needed, and open questions. Be brief, use the language of the conversation, and write only the summary.";

/** Nothing while there is room. */
export function ContextChoice({ conversation, link, actions }) {
  const { messages } = conversation;
  if (!isShort(conversation, link.details.max_model_len)) return null;
  const { numTurns, from, end } = divideConversation(conversation, link.details.max_model_len);
  if (!numTurns) return null;
  const drop = () => {
    conversation.update(messages[end - 1], { keeps: end - from, isUndone: false });
    actions.goToEnd();
  };
  const summarize = () => {
    // A question that went back into the field, and its answer, are removed before the summary is asked for.
    const numRemoved = messages.at(-1).isReturned ? 2 : 0;
    conversation.ask(SUMMARIZE, [], messages.length - numRemoved - from + 1);
    actions.goToEnd();
  };
  const turns = numTurns === 1 ? "the oldest turn" : `the oldest ${numTurns} turns`;
  const isDisabled = !link.isReady || isOpen(messages.at(-1));
  return html`
    <div class="context-choice" role="status">
      <p>${reasonOf(messages)} Leave out ${turns}? ${numTurns === 1 ? "It stays" : "They stay"} here, and can be sent again.</p>
      <span class="context-buttons">
        <button type="button" class="quiet" onClick=${drop}>Drop</button>
        <button type="button" class="quiet" disabled=${isDisabled} onClick=${summarize}>Summarize</button>
      </span>
    </div>
  `;
}

function reasonOf(messages) {
  if (!isTooLong(messages)) return "The model's context is nearly full.";
  return isSummary(messages.at(-2))
    ? "The summary does not fit the model's context."
    : "Your message does not fit beside the conversation.";
}

/** The kept turns take at most half of the context, and leave room for the draft and the longest answer. */
function divideConversation({ messages, settings, draft }, size) {
  const perCharacter = tokensPerCharacter(messages, settings);
  const costOf = (message) => perCharacter * contentOf(message).length;
  const taken = costOf(draft) + costOf({ text: settings.system ?? "", files: [] });
  return divide(messages, Math.min(size / 2, size - (settings.max_tokens ?? 0)) - taken, costOf);
}
