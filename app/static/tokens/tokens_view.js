// An answer with probabilities: its text as tokens, or as it is shown without them, and the button between the two.

import { useState } from "preact/hooks";
import { html } from "../parts/html.js";
import { hasKeyboard } from "../parts/keyboard.js";
import { DOUBTS } from "../tree/probabilities.js";
import { TokenText } from "./token_text.js";

/** `isWanted` is whether tokens are shown unless the user has chosen for this answer; `children` shows its text without them. */
export function TokensView({ message, isWanted, children }) {
  const [chosen, choose] = useState(null);
  const isShown = chosen ?? isWanted;
  return html`
    ${isShown ? html`<${TokenText} id=${message.id} tokens=${message.tokens} version=${message.version} />` : children}
    <div class="token-row">
      <button type="button" class="copy" onClick=${() => choose(!isShown)}>${isShown ? "Show formatted" : "Show tokens"}</button>
      ${isShown && html`<${Legend} />`}
    </div>
  `;
}

function Legend() {
  return html`
    <p class="token-legend">
      ${DOUBTS.map((limit, index) => html`<span class="token" data-doubt=${index + 1}>under ${100 * limit} %</span> `)}
      ${hasKeyboard() && html`<span><kbd>←</kbd> <kbd>→</kbd> go from token to token, <kbd>↓</kbd> to the next one underlined</span>`}
    </p>
  `;
}
