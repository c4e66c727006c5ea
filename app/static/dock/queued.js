// The question that waits for the end of the open answer.

import { html } from "../parts/html.js";

export function Queued({ queued, onEdit }) {
  return html`
    <p class="queued" role="status">
      <span class="queued-text">Next: <bdi>${queued.text || queued.files[0].name}</bdi></span>
      <button type="button" class="copy" aria-label="Edit the waiting question" onClick=${onEdit}>Edit</button>
    </p>
  `;
}
