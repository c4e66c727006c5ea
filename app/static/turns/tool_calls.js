// The tools that an answer calls, with their arguments, which may be hostile or incomplete JSON.

import { html } from "../parts/html.js";

export function ToolCalls({ tools }) {
  return html`
    <ul class="tools" aria-label="Tool calls">
      ${tools.map((tool) => html`
        <li key=${tool.id}>
          <details>
            <summary>Calls <code>${tool.name || "a tool"}</code></summary>
            <pre tabindex="0" dir="ltr">${indented(tool.arguments)}</pre>
          </details>
        </li>`)}
    </ul>
  `;
}

function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
