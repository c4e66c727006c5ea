// Code blocks: their bars, and their colours, by a library that is loaded with the first one. This module is loaded then,
// too.

import { copy } from "../parts/copy_button.js";
import { retrying } from "../parts/lazy.js";
import { canPreview, previewButton } from "./preview.js";
import { switchButton } from "./switch_button.js";

const SHOWN_MS = 1600;
const MAX_LENGTH = 50_000;

/**
 * Which code blocks of an open block are wrapped, by their numbers: they are made again with each line.
 * @type {WeakMap<Element, Set<number>>}
 */
const wrapped = new WeakMap();

const loadLibrary = retrying((again) => import(import.meta.resolve("highlight") + again));

/**
 * The HTML of a code block with its parts marked by classes; null if the language is unknown or the code is too long.
 * @param {string} code
 * @param {string} language
 * @returns {Promise<string | null>}
 */
export async function highlight(code, language) {
  if (code.length > MAX_LENGTH) return null;
  try {
    const { default: library } = await loadLibrary();
    if (!library.getLanguage(language)) return null;
    return library.highlight(code, { language, ignoreIllegals: true }).value;
  } catch {
    // Without a connection code stays uncoloured, until the next block.
    return null;
  }
}

/**
 * Add a bar with the language and buttons above a code block, and make the block scrollable by keyboard. One that is
 * closed may have a preview.
 */
export function frameCode(code, language = "text", isClosed = false) {
  const block = code.parentElement;
  const parent = block.closest(".block");
  // The answer went on while this module was loaded, and has replaced the block.
  if (!parent) return;
  block.tabIndex = 0;
  block.removeAttribute("dir");
  const frame = document.createElement("div");
  frame.className = "code-frame";
  frame.dir = "ltr";
  const number = [...parent.querySelectorAll("pre")].indexOf(block);
  if (!wrapped.has(parent)) wrapped.set(parent, new Set());
  block.replaceWith(frame);
  const bar = document.createElement("div");
  bar.className = "code-bar";
  const name = document.createElement("span");
  name.className = "language";
  name.textContent = language;
  bar.append(name);
  const wrap = wrapButton(frame, wrapped.get(parent), number);
  if (isClosed && canPreview(code.textContent, language)) bar.append(previewButton(frame, block, wrap));
  bar.append(wrap, copyButton(() => code.textContent, "Copy code"));
  frame.append(bar, block);
}

/** A switch: long lines of a code block scroll, or are wrapped; then its number is in `numbers`. */
function wrapButton(frame, numbers, number) {
  frame.classList.toggle("wrapped", numbers.has(number));
  return switchButton("Wrap", "Wrap long lines", numbers.has(number), (isOn) => {
    frame.classList.toggle("wrapped", isOn);
    if (isOn) numbers.add(number);
    else numbers.delete(number);
  });
}

/** A button that copies the result of `readText`, and shows a confirmation. */
function copyButton(readText, label) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.setAttribute("aria-label", label);
  /** @type {any} */
  let timer;
  button.addEventListener("click", async () => {
    button.textContent = (await copy(readText())) ? "Copied" : "Not copied";
    clearTimeout(timer);
    timer = setTimeout(() => (button.textContent = "Copy"), SHOWN_MS);
  });
  return button;
}
