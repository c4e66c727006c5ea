// A long text of a question, folded to its beginning: a pasted file does not push the conversation away.

import { useState } from "preact/hooks";
import { html } from "../parts/html.js";

const MAX_CHARACTERS = 700;
const MAX_LINES = 12;

/** @param {{text: string}} props a text for which `isLong` */
export function LongText({ text }) {
  const [isFolded, fold] = useState(true);
  const shown = isFolded ? `${beginningOf(text)}…` : text;
  return html`
    <p dir="auto">${shown}</p>
    <button type="button" class="copy unfold" aria-expanded=${!isFolded} onClick=${() => fold(!isFolded)}>
      ${isFolded ? `Show all ${text.length.toLocaleString("en")} characters` : "Show less"}</button>
  `;
}

/** The first lines, cut behind a whole character. */
function beginningOf(text) {
  const lines = text.slice(0, MAX_CHARACTERS).split("\n").slice(0, MAX_LINES).join("\n");
  return lines.replace(/[\ud800-\udbff]$/, "").trimEnd();
}
