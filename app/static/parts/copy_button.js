// Copying, and a button for it that says whether it worked.

import { useRef, useState } from "preact/hooks";
import { html } from "./html.js";

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

/** Copy `text`, also if the page is not a secure context (plain http on a local network). Resolves to whether it was copied. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text);
  }
}

function copyBySelection(text) {
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "unseen";
  document.body.append(area);
  area.select();
  const worked = document.execCommand("copy");
  area.remove();
  return worked;
}
