// What the user has entered as results of the tools that an answer has called.

import { CopyButton } from "../parts/copy_button.js";
import { html } from "../parts/html.js";
import { contentOf } from "../tree/request.js";
import { Branches } from "./branches.js";
import { ResultsForm } from "./results_form.js";

export function Results({ message, branch, isEditing, isSent, actions, canAsk }) {
  const { results } = message;
  return html`
    <article class="question" data-message=${message.id} data-sent=${isSent}>
      <h2 class="unseen">Results of tools${!isSent && ", not sent any more"}</h2>
      ${isEditing ? html`
        <${ResultsForm} message=${message} calls=${results} canAsk=${canAsk} onCancel=${() => actions.cancelEdit(message)}
          onSend=${(given) => actions.giveResults(message, given)} />` : html`
        <ul class="tools">${results.map(({ id, name, text }) => html`
          <li key=${id}>
            <details>
              <summary>${text ? "Result" : "Empty result"} of <code>${name || "a tool"}</code></summary>
              <pre tabindex="0">${text}</pre>
            </details>
          </li>`)}</ul>
        <footer class="actions">
          ${branch.count > 1 && html`<${Branches} branch=${branch} onStep=${(step) => actions.switchBranch(message, step)} />`}
          <button type="button" class="copy" aria-label="Edit results" data-edit=${message.id} disabled=${!canAsk}
            onClick=${() => actions.edit(message)}>Edit</button>
          <${CopyButton} read=${() => contentOf(message)} label="Copy results" />
        </footer>`}
    </article>
  `;
}
