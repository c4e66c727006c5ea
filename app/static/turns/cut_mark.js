// The line in a conversation above which messages are not sent to the model any more.

import { html } from "../parts/html.js";
import { cutInForce, isSummary } from "../tree/cut.js";

/** Nothing for a cut that a newer one has replaced. */
export function CutMark({ cut: { message, at }, conversation }) {
  const { messages } = conversation;
  if (at < (cutInForce(messages)?.at ?? 0)) return null;
  const toggle = () => conversation.update(message, { isUndone: !message.isUndone });
  return html`
    <div class="cut" role="note">
      <span>${wordsOf(message)}</span>
      <button type="button" class="copy" onClick=${toggle}>
        ${message.isUndone ? "Leave them out" : "Send them again"}</button>
    </div>
  `;
}

function wordsOf(message) {
  if (message.isUndone) return "The messages above are sent to the model again.";
  const sentence = "The messages above stay here, but are not sent to the model any more";
  return isSummary(message) ? `${sentence}; the summary below is sent in their place.` : `${sentence}.`;
}
