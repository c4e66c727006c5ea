// What keeps the page from being ready, in one line, or the question for the key.

import { useLayoutEffect, useRef } from "preact/hooks";
import { html } from "./html.js";

/** Nothing while ready. `onKey` gets the key that the reader typed. */
export function Notice({ phase, onKey }) {
  switch (phase.name) {
    case "loading":
      return html`<${Loading} progress=${phase.progress} />`;
    case "failed":
      return html`<p class="notice failure" role="alert">${phase.message ?? "The model could not be loaded. The server's log says why."}</p>`;
    case "draining":
      return html`<p class="notice" role="status">The server is stopping. It finishes open answers; a new question waits until it is back.</p>`;
    case "offline":
      return html`<p class="notice" role="status">The server is not answering. Trying again…</p>`;
    case "stale":
      return html`<p class="notice failure" role="alert">This page does not fit the server any more. Reload it.</p>`;
    case "locked":
      return html`<${KeyForm} wasRefused=${phase.wasRefused} onKey=${onKey} />`;
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

function KeyForm({ wasRefused, onKey }) {
  const field = useRef(null);
  useLayoutEffect(() => field.current.focus(), []);
  const onSubmit = (event) => {
    event.preventDefault();
    const key = field.current.value.trim();
    if (key) onKey(key);
  };
  return html`
    <form class="notice key-form" onSubmit=${onSubmit}>
      <label for="key">This server asks for an API key.</label>
      ${wasRefused && html`<p class="failure" role="alert">That key was not accepted.</p>`}
      <div class="key-row">
        <input id="key" type="password" ref=${field} autocomplete="off" spellcheck="false" />
        <button type="submit" class="solid">Continue</button>
      </div>
      <p class="small">It stays in this tab and is sent only to this server.</p>
    </form>
  `;
}
