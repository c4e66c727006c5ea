// What covers the conversation while files are dragged over the page.

import { html } from "../parts/html.js";

export const DropOverlay = () => html`<div class="drop-overlay" role="status">Drop text files here</div>`;
