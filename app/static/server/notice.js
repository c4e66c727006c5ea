// A line with the reason why the page is not ready, or the form for the API key.

import { html } from "../parts/html.js";
import { lazy } from "../parts/lazy.js";

const Loading = lazy((again) => import("./loading.js" + again), "Loading", "parts/parts.css");
const KeyForm = lazy((again) => import("./key_form.js" + again), "KeyForm", "parts/parts.css");

/** Nothing while ready. `onKey` gets the key that the user has entered. */
export function Notice({ phase, onKey }) {
  switch (phase.name) {
    case "connecting":
      // Usually for a moment only.
      return phase.isSlow && html`<p class="notice" role="status">Connecting to the server…</p>`;
    case "loading":
      return html`<${Loading} progress=${phase.progress} />`;
    case "failed":
      return html`<p class="notice failure" role="alert">${phase.message ?? "The model could not be loaded. See the server log."}</p>`;
    case "draining":
      return html`<p class="notice" role="status">The server is shutting down. Open answers finish; a new question waits until it is back.</p>`;
    case "offline":
      return html`<p class="notice" role="status">The server cannot be reached. Trying again…</p>`;
    case "stale":
      return html`<p class="notice failure" role="alert">This page is out of date. Reload it.</p>`;
    case "locked":
      return html`<${KeyForm} wasRejected=${phase.wasRejected} onKey=${onKey} />`;
    default:
      return null;
  }
}
