// Why an answer has failed, and what can be done about it.

import { html } from "../parts/html.js";
import { withLabels } from "../sampling/labels.js";
import { hasFailed, isBlank } from "../tree/answer.js";

// In the server's message for clients that look for it there.
const CODE = " (context_length_exceeded)";

export function Failure({ message, canRetry, canContinue, canTakeBack, actions }) {
  const isOnlyAsked = hasFailed(message) && isBlank(message) && !message.isReturned;
  return html`
    <p class="failure" role="alert">
      <span dir="auto">${withLabels((message.error ?? "").replace(CODE, ""))} ${message.isReturned && "Your message is back in the field below."}</span>
      <span class="failure-row">
        ${canTakeBack && isOnlyAsked && html`<button type="button" class="quiet" onClick=${() => actions.takeBack(message)}>Edit</button>`}
        ${canRetry && canContinue && message.text && html`
          <button type="button" class="quiet" onClick=${() => actions.continueAnswer(message)}>Continue</button>`}
        ${canRetry && html`
          <button type="button" class="quiet" onClick=${() => actions.regenerate(message)}>Try again</button>`}
      </span>
    </p>
  `;
}
