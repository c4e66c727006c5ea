// What a code block of HTML or SVG shows, in a frame in its place, when the user asks for it. The frame's document is
// preview.html, under the policy and in the sandbox of app/api/routes/preview.py. It gets the text with a port, and nothing that
// comes from it does more here than to set its height within bounds and to show a note.

import { sayMissing } from "../parts/lazy.js";

const ADDRESS = "/preview";
const LANGUAGES = ["html", "htm", "svg", "xhtml"];
const BEGINNING = /^\s*(?:<\?xml[^>]*>\s*)?<(?:!doctype html|html|svg)[\s>]/i;
const MIN_HEIGHT = 64;
const MAX_SHARE_OF_WINDOW = 0.8;
const NOTE = "Parts of it are missing: a preview has no network.";

/** Whether a code block is a document that can be shown. */
export const canPreview = (text, language) => LANGUAGES.includes(language.toLowerCase()) || BEGINNING.test(text);

/**
 * A button that shows the preview of a code block, which is appended to `parent`, or the code again.
 * @param {HTMLElement} parent
 * @param {HTMLElement} block
 * @param {HTMLButtonElement} wrap a button for the code alone
 */
export function previewButton(parent, block, wrap) {
  /** @type {HTMLElement | null} */
  let view = null;
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Preview";
  button.addEventListener("click", () => {
    view?.remove();
    view = view ? null : parent.appendChild(makeView(block.textContent, () => button.click()));
    block.hidden = wrap.disabled = view !== null;
    button.textContent = view ? "Code" : "Preview";
  });
  return button;
}

/** @param {string} text @param {() => void} close called if the frame cannot be loaded */
function makeView(text, close) {
  const view = document.createElement("div");
  view.className = "preview";
  const note = document.createElement("p");
  note.className = "small soft";
  const frame = document.createElement("iframe");
  frame.title = "Preview";
  frame.setAttribute("sandbox", "allow-scripts");
  frame.src = ADDRESS;
  const { port1: port, port2: theirs } = new MessageChannel();
  port.onmessage = ({ data }) => {
    if (data === "blocked") note.textContent = NOTE;
    else fit(frame, data);
  };
  // Its origin is none that could be named. What it loads later gets nothing.
  frame.addEventListener("load", () => frame.contentWindow.postMessage(text, "*", [theirs]), { once: true });
  view.append(frame, makeCover(frame), note);
  guardFocus();
  // A frame does not tell whether it has loaded what was asked for.
  fetch(ADDRESS, { method: "HEAD" }).then(({ ok }) => ok || Promise.reject()).catch(() => {
    if (!view.isConnected) return;
    close();
    sayMissing();
  });
  return view;
}

/** @param {HTMLIFrameElement} frame @param {unknown} height what the frame says */
function fit(frame, height) {
  if (typeof height !== "number" || !(height > 0)) return;
  frame.style.height = `${Math.min(Math.max(height, MIN_HEIGHT), innerHeight * MAX_SHARE_OF_WINDOW)}px`;
}

/** What lies over a frame while the user writes on the page; a click gives the frame the focus. */
function makeCover(frame) {
  const cover = document.createElement("button");
  cover.type = "button";
  cover.className = "cover";
  cover.hidden = true;
  cover.title = "Use the preview";
  cover.addEventListener("click", () => {
    cover.hidden = true;
    frame.focus();
  });
  return cover;
}

let isGuarded = false;

/**
 * What the user types on the page is not for a preview: one that is covered gets the focus by its cover or by the Tab key,
 * and what it takes by itself is given back. Where the pointer is over a frame, no browser tells.
 */
function guardFocus() {
  if (isGuarded) return;
  isGuarded = true;
  let last = /** @type {any} */ (document.activeElement);
  let key = "";
  addEventListener("keydown", (event) => (key = event.key), true);
  addEventListener("focusin", ({ target }) => {
    last = target;
    if (!(/** @type {Element} */ (target).matches("textarea, input"))) return;
    for (const cover of document.querySelectorAll(".preview .cover")) /** @type {HTMLElement} */ (cover).hidden = false;
  });
  // Not at once: Chromium changes no focus while it is changing it.
  addEventListener("blur", () => setTimeout(() => {
    const frame = /** @type {HTMLElement | null} */ (document.activeElement);
    if (!frame?.matches(".preview iframe:has(+ .cover:not([hidden]))") || key === "Tab") return;
    frame.blur();
    last.focus({ preventScroll: true });
  }));
}
