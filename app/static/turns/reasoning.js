// What the model has thought before its answer, folded, with the time it took.

import { html } from "../parts/html.js";
import { formatDuration } from "../tree/figures.js";

/** `isOpen` while the model is thinking. It is plain text, which may be hostile. */
export function Reasoning({ text, ms, isOpen }) {
  const label = isOpen ? "Thinking" : "Thought";
  return html`
    <details class="reasoning">
      <summary>${label}${ms ? ` for ${formatDuration(ms)}` : ""}</summary>
      <p dir="auto">${text}</p>
    </details>
  `;
}
