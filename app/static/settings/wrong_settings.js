// What stands above the field while something in the settings is wrong, so that nobody asks in the belief that it acts.

import { html } from "../parts/html.js";
import { LABELS } from "../sampling/labels.js";
import { FIELDS } from "../sampling/sampling.js";
import { readWrong } from "./texts.js";

/** @param {{conversation: any, onSettings: () => void}} props */
export function WrongSettings({ conversation, onSettings }) {
  const wrong = readWrong(conversation.id);
  const names = FIELDS.filter(({ name }) => wrong[name] !== undefined).map(({ name }) => LABELS[name]);
  if (!names.length) return null;
  return html`
    <div class="context-choice" role="status">
      <p>Not valid: what you entered for ${listed(names)}. What was set before still acts.</p>
      <span class="context-buttons">
        <button type="button" class="quiet" onClick=${onSettings}>Correct it</button>
      </span>
    </div>
  `;
}

/** @param {string[]} names at least one */
function listed(names) {
  const last = names.at(-1);
  return names.length === 1 ? last : `${names.slice(0, -1).join(", ")} and ${last}`;
}
