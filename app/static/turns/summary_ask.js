// A question that the page has asked for the user: for a summary of older turns. Its words can be unfolded.

import { html } from "../parts/html.js";
import { Branches } from "./branches.js";

export function SummaryAsk({ message, branch, actions }) {
  return html`
    <article class="summary-ask">
      <h2 class="unseen">The page asked for a summary</h2>
      <details>
        <summary>Asked for a summary of older messages</summary>
        <p dir="auto">${message.text}</p>
      </details>
      ${branch.count > 1 && html`<${Branches} branch=${branch} onStep=${(step) => actions.switchBranch(message, step)} />`}
    </article>
  `;
}
