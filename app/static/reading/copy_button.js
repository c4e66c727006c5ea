// A button that copies a text and says whether that worked.

import { useRef, useState } from "preact/hooks";
import { html } from "../shell/html.js";
import { copy } from "./clipboard.js";

const SHOWN_MS = 1600;

/** @param {{read: () => string, label: string, name?: string}} props `read` is called at a click */
export function CopyButton({ read, label, name = "Copy" }) {
  const [said, setSaid] = useState("");
  const timer = useRef(/** @type {any} */ (null));
  const onClick = async () => {
    setSaid((await copy(read())) ? "Copied" : "Not copied");
    clearTimeout(timer.current);
    timer.current = setTimeout(() => setSaid(""), SHOWN_MS);
  };
  return html`<button type="button" class="copy" onClick=${onClick} aria-label=${label}>${said || name}</button>`;
}
