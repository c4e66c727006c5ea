// The form for the API key.

import { useLayoutEffect, useRef } from "preact/hooks";
import { html } from "../parts/html.js";

/** `onKey` gets the key that the user has entered. */
export function KeyForm({ wasRejected, onKey }) {
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
