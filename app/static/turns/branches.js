// ‹ 1/3 ›: the branches that begin beside a message.

import { html } from "../parts/html.js";

export function Branches({ branch: { number, count }, onStep }) {
  return html`
    <span class="branches" role="group" aria-label=${`Branch ${number} of ${count}`}>
      <button type="button" class="copy" aria-label="Previous branch" disabled=${number === 1}
        onClick=${() => onStep(-1)}>‹</button>
      <span class="branch-number" aria-hidden="true">${number}/${count}</span>
      <button type="button" class="copy" aria-label="Next branch" disabled=${number === count}
        onClick=${() => onStep(1)}>›</button>
    </span>
  `;
}
