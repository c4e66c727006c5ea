// The input field. Enter sends, Shift + Enter starts a new line.

import { useLayoutEffect } from "preact/hooks";
import { html } from "./html.js";
import { SendIcon, StopIcon } from "./icons.js";

/** Whether the field may take the focus: on a phone, this would open the on-screen keyboard. */
export const hasKeyboard = () => matchMedia("(pointer: fine)").matches;

/** The field grows with its text; the button sends, or stops the open answer. */
export function Composer({ fieldRef, draft, canAsk, isOpen, onWrite, onAsk, onStop }) {
  const canSend = (text) => canAsk && !isOpen && text.trim() !== "";

  const send = () => {
    const text = fieldRef.current.value;
    if (!canSend(text)) return;
    // Clear the field at once, not with the next rendering: text typed until then belongs to the next message.
    fieldRef.current.value = "";
    onWrite("");
    onAsk(text.trim());
  };
  const onKeyDown = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  };

  useLayoutEffect(() => fitToText(fieldRef.current), [draft]);
  useLayoutEffect(() => {
    // When the focused stop button is removed, focus the field.
    if (!isOpen && hasKeyboard() && document.activeElement === document.body) fieldRef.current.focus();
  }, [isOpen]);

  return html`
    <form class="composer" onSubmit=${(event) => { event.preventDefault(); send(); }}>
      <label class="unseen" for="question">Your question</label>
      <textarea id="question" ref=${fieldRef} rows="1" placeholder="Ask a question" enterkeyhint="send"
        autocomplete="off" dir="auto" value=${draft} onInput=${(event) => onWrite(event.target.value)}
        onKeyDown=${onKeyDown}></textarea>
      ${isOpen
        ? html`<button key="stop" type="button" class="round stop" aria-label="Stop" title="Stop (Esc)" onClick=${onStop}>
            <${StopIcon} /></button>`
        : html`<button key="send" type="submit" class="round send" aria-label="Send" title="Send (Enter)"
            disabled=${!canSend(draft)}><${SendIcon} /></button>`}
    </form>
    <p class="hint"><kbd>Enter</kbd> sends <span>·</span> <kbd>Shift</kbd> + <kbd>Enter</kbd> new line <span>·</span>
      <kbd>Esc</kbd> stops</p>
  `;
}

function fitToText(field) {
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight}px`;
}
