// Text files that belong to a question: named, counted and foldable.

import { html } from "../parts/html.js";

/** `onRemove(index)` is given while they can still be removed. */
export function FileList({ files, onRemove }) {
  return html`
    <ul class="files" aria-label="Files">
      ${files.map(({ name, text }, index) => html`
        <li>
          <details>
            <summary><bdi class="file-name">${name}</bdi> <span class="file-size">${sizeOf(text)}</span></summary>
            <pre tabindex="0">${text}</pre>
          </details>
          ${onRemove && html`
            <button type="button" class="copy" aria-label=${`Remove ${name}`} onClick=${() => onRemove(index)}>×</button>`}
        </li>`)}
    </ul>
  `;
}

function sizeOf(text) {
  const lines = text.replace(/\n$/, "").split("\n").length;
  return `${lines} ${lines === 1 ? "line" : "lines"}, ${text.length.toLocaleString("en")} characters`;
}
