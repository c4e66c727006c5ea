// The question that waits for the end of the open answer, in this tab or another one.

import { html } from "../parts/html.js";

/** Only the tab that lets it wait can take it back. */
export function Queued({ queued, isElsewhere, onEdit }) {
  return html`
    <p class="queued" role="status">
      <span class="queued-text">Next: <bdi>${queued.text || queued.files[0].name}</bdi></span>
      ${!isElsewhere && html`
        <button type="button" class="copy" aria-label="Edit the waiting question" onClick=${onEdit}>Edit</button>`}
    </p>
  `;
}
