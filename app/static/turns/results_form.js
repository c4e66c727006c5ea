// The fields in which the user enters what the tools have given that an answer calls. Ctrl + Enter sends it; Escape cancels
// the editing of results, and does nothing else.

import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { html } from "../parts/html.js";
import { editName } from "../store/edits.js";
import { tabStorage } from "../store/web_storage.js";

/**
 * What is written stays in the tab until it is sent or cancelled.
 * @param {{message: any, calls: {id: string, name: string, text?: string}[], canAsk: boolean, onSend: (results: any[]) => void,
 *   onCancel?: () => void}} props `message` is the answer, or the results that are replaced
 */
export function ResultsForm({ message, calls, canAsk, onSend, onCancel }) {
  const stored = `${editName(message)}.results`;
  const [texts, setTexts] = useState(() => JSON.parse(tabStorage.get(stored) ?? "null") ?? calls.map(({ text }) => text ?? ""));
  const form = useRef(null);
  // Its button is gone.
  useLayoutEffect(() => {
    if (onCancel) form.current.querySelector("textarea").focus();
  }, []);
  const write = (at, text) => {
    const written = texts.with(at, text);
    setTexts(written);
    tabStorage.set(stored, JSON.stringify(written));
  };
  const finish = (act) => {
    tabStorage.remove(stored);
    act();
  };
  // A tool may give nothing.
  const send = () => canAsk && finish(() => onSend(calls.map(({ id, name }, at) => ({ id, name, text: texts[at] }))));
  const onKeyDown = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) send();
    else if (event.key === "Escape") {
      event.stopPropagation();
      if (onCancel) finish(onCancel);
    }
  };
  return html`
    <form class="editor results-form" ref=${form} onKeyDown=${onKeyDown}
      onSubmit=${(event) => { event.preventDefault(); send(); }}>
      ${calls.map(({ id, name }, at) => html`
        <label key=${id}><span>Result of <code>${name || "a tool"}</code></span>
          <textarea rows="2" dir="auto" spellcheck="false" value=${texts[at]}
            onInput=${(event) => write(at, event.target.value)}></textarea></label>`)}
      <div class="editor-row">
        ${onCancel && html`<button type="button" class="quiet" onClick=${() => finish(onCancel)}>Cancel</button>`}
        <button type="submit" class="solid" disabled=${!canAsk}>${calls.length > 1 ? "Send results" : "Send result"}</button>
      </div>
    </form>
  `;
}
