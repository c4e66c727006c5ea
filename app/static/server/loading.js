// How far the server has loaded the model.

import { html } from "../parts/html.js";

/** `progress` is the loaded share, 0 to 1. */
export function Loading({ progress }) {
  const percent = Math.round(progress * 100);
  return html`
    <div class="notice loading" role="status">
      <label for="loading">Loading the model… <b aria-hidden="true">${percent} %</b></label>
      <progress id="loading" max="100" value=${percent}></progress>
    </div>
  `;
}
