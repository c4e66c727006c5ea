// The field that replaces a message while it is edited. Escape cancels; what sends a question saves one, Ctrl + Enter an
// answer.

import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { html } from "../parts/html.js";
import { hasKeyboard, isSending } from "../parts/keyboard.js";
import { editName } from "../store/edits.js";
import { tabStorage } from "../store/web_storage.js";
import { FileList } from "./file_list.js";

/**
 * `kind` is the message's: question or answer; its files are sent again. What is written stays in the tab until it is saved
 * or cancelled.
 */
export function Editor({ message, kind, label, save, isShort, onSave, onCancel }) {
  const field = useRef(null);
  const name = editName(message);
  const [draft, setDraft] = useState(tabStorage.get(name) ?? message.text);
  const { files = [] } = message;
  const isSendable = draft.trim() !== "" || files.length > 0;
  const write = (value) => {
    setDraft(value);
    tabStorage.set(name, value);
  };
  const finish = (act) => {
    tabStorage.remove(name);
    act();
  };
  const cancel = () => finish(onCancel);
  const submit = () => isSendable && finish(() => onSave(draft.trim()));
  const onKeyDown = (event) => {
    if (event.key === "Escape") {
      event.stopPropagation();
      cancel();
    } else if (isSending(event) && (isShort || event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      submit();
    }
  };
  useLayoutEffect(() => {
    // One that is shown again with its conversation opens no keyboard on the screen.
    if (tabStorage.get(name) !== null && !hasKeyboard()) return;
    field.current.focus();
    field.current.setSelectionRange(draft.length, draft.length);
  }, []);
  useLayoutEffect(() => {
    field.current.style.height = "auto";
    field.current.style.height = `${field.current.scrollHeight + 2}px`;
  }, [draft]);
  return html`
    <article class=${kind}>
      <form class="editor" onSubmit=${(event) => { event.preventDefault(); submit(); }}>
        ${files.length > 0 && html`<${FileList} files=${files} />`}
        <textarea ref=${field} aria-label=${label} dir="auto" rows="2" value=${draft}
          onInput=${(event) => write(event.target.value)} onKeyDown=${onKeyDown}></textarea>
        <p class="editor-row">
          ${hasKeyboard() && html`<span class="small soft">${isShort ? "Enter" : "Ctrl + Enter"} ${isShort ? "sends" : "saves"}, Esc cancels</span>`}
          <button type="button" class="quiet" onClick=${cancel}>Cancel</button>
          <button type="submit" class="solid" disabled=${!isSendable}>${save}</button>
        </p>
      </form>
    </article>
  `;
}
