// One message at the edge of the window, with at most one action, which disappears after a time.

import { useEffect } from "preact/hooks";
import { html } from "../parts/html.js";

const SHOWN_MS = 10_000;

/** @param {{message: {text: string, action?: string, run?: () => void} | null, onEnd: () => void}} props */
export function Toast({ message, onEnd }) {
  useEffect(() => {
    if (!message) return undefined;
    const timer = setTimeout(onEnd, SHOWN_MS);
    return () => clearTimeout(timer);
  }, [message]);
  const run = () => {
    message.run();
    onEnd();
  };
  return html`
    <div class="toasts" aria-live="polite">
      ${message && html`
        <p class="toast">
          <bdi>${message.text}</bdi>
          ${message.action && html`<button type="button" class="quiet" onClick=${run}>${message.action}</button>`}
          <button type="button" class="copy" aria-label="Dismiss" onClick=${onEnd}>×</button>
        </p>`}
    </div>
  `;
}
