// A modal window. The browser's own element keeps the focus inside, closes with Escape and returns the focus.

import { useLayoutEffect, useRef } from "preact/hooks";
import { html } from "./html.js";

export function Dialog({ title, className = "", onClose, children }) {
  const root = useRef(null);
  useLayoutEffect(() => {
    const dialog = root.current;
    const before = document.activeElement;
    dialog.showModal();
    return () => {
      // After Escape the browser has moved the focus already, and the user perhaps since.
      if (!dialog.open) return;
      dialog.close();
      if (before instanceof HTMLElement && before.isConnected) before.focus({ preventScroll: true });
    };
  }, []);
  // Also a dialog that was removed reports, later, that it is closed.
  const onEnd = () => root.current && onClose();
  // A click beside the window hits the dialog itself.
  const onClick = (event) => event.target === root.current && onClose();
  return html`
    <dialog ref=${root} class=${`window ${className}`} aria-label=${title} onClose=${onEnd} onClick=${onClick}>
      <div class="window-body">
        <header class="window-head">
          <h2>${title}</h2>
          <button type="button" class="quiet icon" aria-label="Close" onClick=${onClose}>×</button>
        </header>
        ${children}
      </div>
    </dialog>
  `;
}
