// Model output is untrusted. Only this module turns text into HTML: marked's output is sanitized by DOMPurify, whose
// Trusted Types policy is the only one that the page's CSP allows for `innerHTML`.

import DOMPurify from "dompurify";
import { BlockStream, completeTail, renderBlock, splitBlocks } from "./blocks.js";
import { copyButton } from "./clipboard.js";

const ALLOWED = {
  ALLOWED_TAGS: [
    ..."p br hr h1 h2 h3 h4 h5 h6 ul ol li blockquote pre code em strong del a".split(" "),
    ..."table thead tbody tr th td".split(" "),
  ],
  ALLOWED_ATTR: ["href", "title", "class", "start", "align"],
  ALLOWED_URI_REGEXP: /^(?:https?:|mailto:)/i,
  // The values of other attributes would be checked as URLs.
  ADD_URI_SAFE_ATTR: ["start", "align"],
  ALLOW_ARIA_ATTR: false,
  ALLOW_DATA_ATTR: false,
  RETURN_TRUSTED_TYPE: true,
};

DOMPurify.addHook("afterSanitizeAttributes", (element) => {
  if (element.tagName === "A" && element.hasAttribute("href")) {
    element.setAttribute("target", "_blank");
    element.setAttribute("rel", "noopener noreferrer");
  }
});

/** One answer on the page: closed blocks are rendered once, the open tail with each call of `stream`. */
export class MarkdownView {
  #root;
  #blocks = new BlockStream();
  #tail = null;

  /** @param {HTMLElement} root an empty element that belongs to this view alone */
  constructor(root) {
    this.#root = root;
  }

  /** Show the text so far of a growing answer. */
  stream(text) {
    const { closed, open } = this.#blocks.update(text);
    for (const block of closed) {
      show(this.#takeTail(), renderBlock(block), block);
    }
    if (open.trim()) {
      this.#tail ??= this.#root.appendChild(document.createElement("div"));
      show(this.#tail, renderBlock(completeTail(open)), null);
    }
  }

  /** Show the complete text; only blocks that were rendered differently while streaming are rendered again. */
  finish(text) {
    const { blocks, definitions } = splitBlocks(text);
    const elements = this.#root.children;
    blocks.forEach((block, index) => {
      const element = elements[index] ?? this.#root.appendChild(document.createElement("div"));
      if (shown.get(element) === block && !definitions) return;
      show(element, renderBlock(block, definitions), block);
    });
    while (elements.length > blocks.length) elements[elements.length - 1].remove();
    this.#tail = null;
  }

  /** Use the tail's element for the next closed block, so that nothing on the page moves. */
  #takeTail() {
    const element = this.#tail ?? this.#root.appendChild(document.createElement("div"));
    this.#tail = null;
    return element;
  }
}

/** The source of the block that an element shows completely. */
const shown = new WeakMap();

function show(element, unsafeHtml, block) {
  element.className = "block";
  element.innerHTML = DOMPurify.sanitize(unsafeHtml, ALLOWED);
  for (const code of element.querySelectorAll("pre > code")) frameCode(code);
  for (const table of element.querySelectorAll("table")) wrap(table, "table-frame").tabIndex = 0;
  setDirections(element);
  shown.set(element, block);
}

/** The direction of a paragraph, list or table follows its first letter outside of code; code is left to right. */
function setDirections(block) {
  for (const child of block.children) child.dir = "auto";
  for (const code of block.querySelectorAll("code, .code-frame")) code.dir = "ltr";
}

/** Add a bar with the language and a copy button above a code block, and make the block scrollable by keyboard. */
function frameCode(code) {
  code.parentElement.tabIndex = 0;
  const frame = wrap(code.parentElement, "code-frame");
  const bar = document.createElement("div");
  bar.className = "code-bar";
  const language = document.createElement("span");
  language.textContent = /^language-(\S+)/.exec(code.className)?.[1] ?? "text";
  bar.append(language, copyButton(() => code.textContent, "Copy code"));
  frame.prepend(bar);
}

/** Put `element` into a new div of a class, in its place. */
function wrap(element, className) {
  const frame = document.createElement("div");
  frame.className = className;
  element.replaceWith(frame);
  frame.append(element);
  return frame;
}
