// A line with the reason why the page is not ready, or the form for the API key.

import { useLayoutEffect, useRef } from "preact/hooks";
import { html } from "./html.js";

/** Nothing while ready. `onKey` gets the key that the user has entered. */
export function Notice({ phase, onKey }) {
  switch (phase.name) {
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

function Loading({ progress }) {
  const percent = Math.round(progress * 100);
  return html`
    <div class="notice loading" role="status">
      <label for="loading">Loading the model… <b aria-hidden="true">${percent} %</b></label>
      <progress id="loading" max="100" value=${percent}></progress>
    </div>
  `;
}

function KeyForm({ wasRejected, onKey }) {
  const field = useRef(null);
  useLayoutEffect(() => field.current.focus(), []);
  const onSubmit = (event) => {
    event.preventDefault();
    const key = field.current.value.trim();
    if (key) onKey(key);
  };
  return html`
    <form class="notice key-form" onSubmit=${onSubmit}>
      <label for="key">This server requires an API key.</label>
      ${wasRejected && html`<p class="failure" role="alert">The key was not accepted.</p>`}
      <div class="key-row">
        <input id="key" type="password" ref=${field} autocomplete="off" spellcheck="false" />
        <button type="submit" class="solid">Continue</button>
      </div>
      <p class="small">The key is stored in this tab only, and sent only to this server.</p>
    </form>
  `;
}
