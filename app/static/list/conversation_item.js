// One conversation of the list: its title, and a menu.

import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { html } from "../parts/html.js";
import { Icon } from "../parts/icons.js";

const PinIcon = () => html`<${Icon} size="14"><path d="M9 4h6l-1 6 3 3H7l3-3-1-6ZM12 13v7" /><//>`;

/** `isSelected` is null unless conversations are being selected; `place` is where searched words were found, or null. */
export function ConversationItem({ conversation, place, isCurrent, isWriting, isSelected, onSelect, actions }) {
  const [isRenaming, setRenaming] = useState(false);
  const line = useRef(null);
  // The title gets the focus back from its field, unless the user has moved it.
  useLayoutEffect(() => isRenaming ? () => {
    if (document.activeElement === document.body) line.current?.querySelector("button")?.focus();
  } : undefined, [isRenaming]);
  const { id, title, isPinned } = conversation;
  const name = title || "Untitled";
  if (isRenaming) {
    const finish = (text) => {
      setRenaming(false);
      if (text) actions.rename(id, text);
    };
    return html`<li class="conversation" ref=${line}><${TitleField} title=${title} onEnd=${finish} /></li>`;
  }
  return html`
    <li class="conversation" ref=${line} data-current=${isCurrent}>
      ${isSelected !== null
        ? html`<label class="conversation-title"><input type="checkbox" checked=${isSelected} onChange=${() => onSelect(id)} />
            <bdi title=${name}>${name}</bdi></label>`
        : html`
            <button type="button" class="conversation-title" aria-current=${isCurrent ? "true" : undefined}
              onClick=${() => actions.open(id, place)}>
              ${isPinned && html`<span class="pin" title="Pinned"><${PinIcon} /></span>`}
              <bdi title=${name}>${name}</bdi>
              ${isWriting && html`<span class="writing" role="img" aria-label="An answer is being written"></span>`}
              ${place && html`<${Excerpt} parts=${place.excerpt} />`}
            </button>
            <${Menu} id=${`actions-${id}`} name=${name} items=${[
              ["Rename", () => setRenaming(true)],
              [isPinned ? "Unpin" : "Pin", () => actions.pin(id, !isPinned)],
              ["Export as Markdown", () => actions.exportMarkdown([id])],
              ["Export as JSON", () => actions.exportJson([id])],
              ["Delete", () => actions.remove([id])],
            ]} />`}
    </li>
  `;
}

const Excerpt = ({ parts }) => html`
  <span class="excerpt" dir="auto">${parts.map((part, index) => (index % 2 ? html`<mark>${part}</mark>` : part))}</span>
`;

function TitleField({ title, onEnd }) {
  const field = useRef(null);
  const isOver = useRef(false);
  const end = (text) => {
    if (isOver.current) return;
    isOver.current = true;
    onEnd(text.trim());
  };
  useLayoutEffect(() => field.current.select(), []);
  const onKeyDown = (event) => {
    if (event.key !== "Enter" && event.key !== "Escape") return;
    // Else the title, which gets the focus now, would be pressed by Enter, and Escape would stop the answer.
    event.preventDefault();
    event.stopPropagation();
    end(event.key === "Enter" ? event.target.value : "");
  };
  return html`<input ref=${field} class="search" aria-label="Title" maxlength="200" value=${title} dir="auto"
    onKeyDown=${onKeyDown} onBlur=${(event) => end(event.target.value)} />`;
}

/** A button that opens a list of actions. Escape and a click elsewhere close it. */
function Menu({ id, name, items }) {
  const root = useRef(null);
  // There may be hundreds of conversations: only an open menu has its items.
  const [isOpen, setOpen] = useState(false);
  const close = () => {
    if (root.current) root.current.open = false;
  };
  const focus = () => root.current.querySelector("summary").focus();
  // Above its line, if there is more room.
  useLayoutEffect(() => {
    if (!isOpen) return;
    const { top, bottom } = root.current.getBoundingClientRect();
    const around = root.current.closest(".conversations").getBoundingClientRect();
    const isShort = around.bottom - bottom < root.current.lastElementChild.offsetHeight;
    root.current.dataset.up = isShort && top - around.top > around.bottom - bottom;
  }, [isOpen]);
  const onKeyDown = (event) => {
    if (event.key !== "Escape" || !root.current.open) return;
    event.stopPropagation();
    close();
    focus();
  };
  // The list may be gone already, because an action has removed its conversation.
  const onBlur = (event) => root.current && !root.current.contains(event.relatedTarget) && close();
  return html`
    <details class="menu" ref=${root} onToggle=${(event) => setOpen(event.currentTarget.open)}
      onKeyDown=${onKeyDown} onFocusOut=${onBlur}>
      <summary id=${id} role="button" aria-label=${`Actions for ${name}`}>⋯</summary>
      ${isOpen && html`
        <ul>
          ${items.map(([label, run]) => html`
            <li><button type="button" onClick=${() => { focus(); close(); run(); }}>${label}</button></li>`)}
        </ul>`}
    </details>
  `;
}
