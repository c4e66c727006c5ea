// Answers that were asked for at once, side by side. Where there is no room for all, they are moved sideways.

import { html } from "../parts/html.js";

/** `children` are the answers. */
export function Sides({ children }) {
  return html`
    <div class="sides" role="group" tabindex="0" aria-label=${`${children.length} answers side by side`}
      data-count=${children.length}>${children}</div>
  `;
}
