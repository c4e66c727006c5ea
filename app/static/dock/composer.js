// The input field, and the line below it. Enter sends, Shift + Enter starts a new line; on a phone Enter does that, and the
// button sends. While an answer is open, a question waits for its end.

import { useLayoutEffect, useRef } from "preact/hooks";
import { html } from "../parts/html.js";
import { AttachIcon, SendIcon, StopIcon } from "../parts/icons.js";
import { hasKeyboard, isSending } from "../parts/keyboard.js";
import { lazy } from "../parts/lazy.js";

const ContextMeter = lazy((again) => import("./context_meter.js" + again), "ContextMeter", "turns/context.css");
const FileList = lazy((again) => import("../turns/file_list.js" + again), "FileList", "parts/parts.css");
const Queued = lazy((again) => import("./queued.js" + again), "Queued", "parts/parts.css");

/** The field grows with its text; one button sends, the other stops the open answer. */
export function Composer({ fieldRef, conversation, canAsk, actions }) {
  const { text: draft, files, queued: own } = conversation.draft;
  const queued = own ?? conversation.queuedElsewhere;
  const isOpen = Boolean(conversation.open);
  const picker = useRef(null);
  const canSend = (text) => canAsk && !queued && (text.trim() !== "" || files.length > 0);

  const send = () => {
    const text = fieldRef.current.value;
    if (!canSend(text)) return;
    // Clear the field at once, not with the next rendering: text typed until then belongs to the next message.
    fieldRef.current.value = "";
    actions.write("");
    actions.ask(text.trim());
  };
  const onKeyDown = (event) => {
    if (event.key === "ArrowUp" && !event.target.value && !files.length) {
      if (actions.editLast()) event.preventDefault();
    } else if (isSending(event)) {
      event.preventDefault();
      send();
    }
  };
  const onPaste = (event) => {
    const { types, files: pasted } = event.clipboardData;
    // Cells of a table come as a text and as a picture of it.
    const hasText = types.includes("text/plain");
    const attached = [...pasted].filter(({ type }) => !(hasText && type.startsWith("image/")));
    if (!attached.length) return;
    event.preventDefault();
    actions.attach(attached);
  };

  const onPick = ({ target }) => {
    actions.attach(target.files);
    // The same file may be chosen again.
    target.value = "";
  };

  useLayoutEffect(() => fitToText(fieldRef.current), [draft, conversation]);

  return html`
    ${queued && html`<${Queued} queued=${queued} isElsewhere=${!own} onEdit=${actions.unqueue} />`}
    <form class="composer" onSubmit=${(event) => { event.preventDefault(); send(); }}>
      ${files.length > 0 && html`<${FileList} files=${files} onRemove=${actions.detach} />`}
      <div class="composer-row">
        <input type="file" multiple hidden ref=${picker} onChange=${onPick} />
        <button type="button" class="round attach" aria-label="Attach files" title="Attach text files"
          onClick=${() => picker.current.click()}><${AttachIcon} /></button>
        <label class="unseen" for="question">Your question</label>
        <textarea id="question" ref=${fieldRef} rows="1" placeholder=${isOpen ? "Ask the next question" : "Ask a question"}
          enterkeyhint=${hasKeyboard() ? "send" : "enter"} autocomplete="off" dir="auto" value=${draft} onPaste=${onPaste}
          onInput=${(event) => actions.write(event.target.value)} onKeyDown=${onKeyDown}></textarea>
        ${isOpen && html`<button key="stop" type="button" class="round stop" aria-label="Stop" title="Stop (Esc)"
          onClick=${actions.stop}><${StopIcon} /></button>`}
        ${(!isOpen || canSend(draft)) && html`<button key="send" type="submit" class="round send" aria-label="Send"
          title=${hasKeyboard() ? "Send (Enter)" : "Send"} disabled=${!canSend(draft)}><${SendIcon} /></button>`}
      </div>
    </form>
  `;
}

// What is around the field keeps its height meanwhile: a log that is higher for a moment scrolls.
function fitToText(field) {
  const { parentElement: row } = field;
  row.style.height = `${row.offsetHeight}px`;
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight}px`;
  row.style.height = "";
}

/** The context, and the keys. */
export function Hint({ conversation, link, onHelp }) {
  return html`
    <div class="hint">
      ${!conversation.isEmpty && html`<${ContextMeter} conversation=${conversation} size=${link.details.max_model_len} />`}
      <p class="keys">
        <span><kbd>Enter</kbd> sends</span>
        <span><kbd>Shift</kbd> + <kbd>Enter</kbd> new line</span>
        <span><kbd>Esc</kbd> stops</span>
        <span><button type="button" class="link" onClick=${onHelp}>Shortcuts</button></span>
      </p>
    </div>
  `;
}
