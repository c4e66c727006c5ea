// The button that leads back to the end of the conversation.

import { html } from "../parts/html.js";
import { Icon } from "../parts/icons.js";

export const ToEnd = ({ onClick }) => html`
  <button type="button" class="round to-end" aria-label="Go to the end" title="Go to the end" onClick=${onClick}>
    <${Icon}><path d="M12 5v14M6 13l6 6 6-6" /><//>
  </button>
`;
