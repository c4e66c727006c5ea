// One question: plain text without Markdown, its files, and what can be done with it.

import { CopyButton } from "../reading/copy_button.js";
import { html } from "../shell/html.js";
import { lazy } from "../shell/lazy.js";

const Branches = lazy((again) => import("./branches.js" + again), "Branches", "parts.css");
const FileList = lazy((again) => import("./file_list.js" + again), "FileList", "parts.css");
const Editor = lazy((again) => import("./editor.js" + again), "Editor", "parts.css");

export function Question({ message, branch, isEditing, actions, canAsk }) {
  const view = html`
    <article class="question" data-message=${message.id}>
      <h2 class="unseen">You asked</h2>
      ${message.files?.length && html`<${FileList} files=${message.files} />`}
      ${message.text && html`<p dir="auto">${message.text}</p>`}
      <footer class="actions">
        ${branch.count > 1 && html`<${Branches} branch=${branch} onStep=${(step) => actions.switchBranch(message, step)} />`}
        <button type="button" class="copy" aria-label="Edit question" data-edit=${message.id} disabled=${!canAsk}
          onClick=${() => actions.edit(message)}>Edit</button>
        <${CopyButton} read=${() => message.text} label="Copy question" />
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
