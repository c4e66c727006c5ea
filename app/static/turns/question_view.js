// One question: plain text without Markdown, its files, and what can be done with it.

import { CopyButton } from "../parts/copy_button.js";
import { html } from "../parts/html.js";
import { lazy } from "../parts/lazy.js";

const Branches = lazy((again) => import("./branches.js" + again), "Branches", "parts/parts.css");
const FileList = lazy((again) => import("./file_list.js" + again), "FileList", "parts/parts.css");
const LongText = lazy((again) => import("./long_text.js" + again), "LongText", "parts/parts.css");
const Editor = lazy((again) => import("./editor.js" + again), "Editor", "parts/parts.css");

const MAX_CHARACTERS = 2000;
const MAX_LINES = 30;

export function Question({ message, branch, isEditing, isSent, actions, canAsk }) {
  const view = html`
    <article class="question" data-message=${message.id} data-sent=${isSent}>
      <h2 class="unseen">You asked${!isSent && ", not sent any more"}</h2>
      ${message.files?.length && html`<${FileList} files=${message.files} />`}
      ${message.text && html`<${Text} text=${message.text} />`}
      <footer class="actions">
        ${branch.count > 1 && html`<${Branches} branch=${branch} onStep=${(step) => actions.switchBranch(message, step)} />`}
        <button type="button" class="copy" aria-label="Edit question" data-edit=${message.id} disabled=${!canAsk}
          onClick=${() => actions.edit(message)}>Edit</button>
        <${CopyButton} read=${() => message.text} label="Copy question" />
        <button type="button" class="copy" aria-label="Delete question and answer" title="Delete question and answer"
          onClick=${() => actions.delete(message)}>Delete</button>
      </footer>
    </article>
  `;
  if (!isEditing) return view;
  const cancel = () => actions.cancelEdit(message);
  return html`
    <${Editor} message=${message} kind="question" fallback=${view} label="Edit your question" save="Send" isShort=${true}
      onSave=${(text) => actions.saveQuestion(message, text)} onCancel=${cancel} onMissing=${cancel} />
  `;
}

function Text({ text }) {
  const isLong = text.length > MAX_CHARACTERS || text.split("\n", MAX_LINES + 1).length > MAX_LINES;
  if (!isLong) return html`<p dir="auto">${text}</p>`;
  return html`<${LongText} text=${text} fallback=${html`<p dir="auto">${text.slice(0, MAX_CHARACTERS)}…</p>`} />`;
}
