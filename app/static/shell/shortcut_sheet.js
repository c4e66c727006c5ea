// The sheet that lists the keyboard shortcuts.

import { Dialog } from "../parts/dialog.js";
import { html } from "../parts/html.js";
import { hasKeyboard } from "../parts/keyboard.js";

const WITH_KEYBOARD = [
  ["Enter", "Send"],
  ["Shift + Enter", "New line"],
];
const ON_A_PHONE = [
  ["Enter", "New line"],
  ["Ctrl + Enter", "Send, as the button does"],
];
const SHORTCUTS = [
  ["Any letter", "Write in the field, wherever the focus is"],
  ["↑", "Edit the last question, in an empty field"],
  ["Esc", "Stop the answer"],
  ["Ctrl + Shift + O", "New chat"],
  ["Ctrl + K", "Search conversations"],
  ["Ctrl + B", "Show or hide the list"],
  ["Ctrl + E", "Show or hide the engine at work"],
  ["Ctrl + /", "This list"],
];

export function ShortcutSheet({ onClose }) {
  return html`
    <${Dialog} title="Keyboard shortcuts" onClose=${onClose}>
      <table class="shortcuts">
        <tbody>
          ${[...(hasKeyboard() ? WITH_KEYBOARD : ON_A_PHONE), ...SHORTCUTS].map(([keys, text]) => html`
            <tr><th scope="row">${keys.split(" + ").map((key, index) => html`${index > 0 && " + "}<kbd>${key}</kbd>`)}</th>
              <td>${text}</td></tr>`)}
        </tbody>
      </table>
    <//>
  `;
}
