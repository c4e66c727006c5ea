// The line below the field: the context, and the keys.

import { html } from "./html.js";
import { lazy } from "./lazy.js";

const ContextMeter = lazy((again) => import("../conversation/context_meter.js" + again), "ContextMeter", "context.css");

export function Hint({ conversation, link, onHelp }) {
  return html`
    <div class="hint">
      ${!conversation.isEmpty && html`<${ContextMeter} conversation=${conversation} size=${link.details.max_model_len} />`}
      <p class="keys"><kbd>Enter</kbd> sends <span>·</span> <kbd>Shift</kbd> + <kbd>Enter</kbd> new line <span>·</span>
        <kbd>Esc</kbd> stops <span>·</span>
        <button type="button" class="link" onClick=${onHelp}>Shortcuts</button></p>
    </div>
  `;
}
