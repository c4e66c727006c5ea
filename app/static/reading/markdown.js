// Model output is untrusted. Only this module turns text into HTML: marked's output is sanitized by DOMPurify, whose
// Trusted Types policy is the only one that the page's CSP allows for `innerHTML`.

import DOMPurify from "dompurify";
import { loadStyle, retrying } from "../parts/lazy.js";
import { BlockStream, completeTail, extendsText, renderBlock, splitBlocks } from "./blocks.js";

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

const ALLOWED_IN_CODE = { ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"], RETURN_TRUSTED_TYPE: true };

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
  #tailText = "";

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
    if (open.trim() && !(this.#tail && this.#extendTail(open))) {
      this.#tail ??= this.#root.appendChild(document.createElement("div"));
      show(this.#tail, renderBlock(completeTail(open)), null);
    }
    this.#tailText = open;
  }

  /** Show the complete text; only blocks that were rendered differently while streaming are rendered again. */
  finish(text) {
    const { blocks, definitions } = splitBlocks(text);
    const elements = this.#root.children;
    blocks.forEach((block, index) => {
      const element = elements[index] ?? this.#root.appendChild(document.createElement("div"));
      if (shown.get(element) === block && !definitions) {
        // An equal part of the final text: the old one keeps all of the text that it was once cut from.
        shown.set(element, block);
        return;
      }
      show(element, renderBlock(block, definitions), block);
    });
    while (elements.length > blocks.length) elements[elements.length - 1].remove();
    this.#tail = null;
    this.#tailText = "";
  }

  /** Add what is new to the last text of the tail, if it is only more of that. Most frames bring no mark. */
  #extendTail(open) {
    const last = lastText(this.#tail);
    const parent = last?.parentElement;
    if (!parent || parent.closest("a, button")) return false;
    const length = last.data.trimEnd().length;
    const more = open.slice(this.#tailText.length);
    const isLast = last.data[length - 1] === this.#tailText.at(-1);
    if (!isLast || !extendsText(this.#tailText, more, parent.closest("pre") !== null)) return false;
    last.insertData(length, more);
    return true;
  }

  /** Use the tail's element for the next closed block, so that nothing on the page moves. */
  #takeTail() {
    const element = this.#tail ?? this.#root.appendChild(document.createElement("div"));
    this.#tail = null;
    return element;
  }
}

/** The last text in an element that is not blank. @returns {Text | null} */
function lastText(element) {
  const texts = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  let text = /** @type {Text | null} */ (texts.lastChild());
  while (text && !text.data.trim()) text = /** @type {Text | null} */ (texts.previousNode());
  return text;
}

/** The source of the block that an element shows completely. */
const shown = new WeakMap();

function show(element, unsafeHtml, block) {
  element.className = "block";
  element.innerHTML = DOMPurify.sanitize(unsafeHtml, ALLOWED);
  for (const table of element.querySelectorAll("table")) frameTable(table);
  setDirections(element);
  withModule(CODE, element.querySelectorAll("pre > code"), (module, code) => showCode(module, code, block !== null));
  withModule(MATHS, element.querySelectorAll(".formula"), ({ typeset }, code) => typeset(code));
  shown.set(element, block);
}

/** The direction of a paragraph, list or table follows its first letter outside of code; code is left to right. */
function setDirections(block) {
  for (const child of block.children) child.dir = "auto";
  for (const code of block.querySelectorAll("code")) code.dir = "ltr";
}

/** Modules and styles that are loaded with the first element that needs them; without a connection it stays as it is. */
const CODE = partOf((again) => import("./code_blocks.js" + again), "reading/code_blocks.css");
const MATHS = partOf((again) => import("./maths.js" + again), "reading/maths.css");

function partOf(load, style) {
  const loadModule = retrying(load);
  return { load: () => Promise.all([loadModule(), loadStyle(style)]), module: null };
}

/** Call `use` for each element: at once if the part's module is there. */
function withModule(part, elements, use) {
  const useAll = () => elements.forEach((element) => use(part.module, element));
  if (part.module) useAll();
  else if (elements.length) {
    part.load().then(([module]) => {
      part.module = module;
      useAll();
    }, () => {});
  }
}

/** Frame a code block, and colour it if it is closed, when the library is there. */
async function showCode({ frameCode, highlight }, code, isClosed) {
  const language = /^language-(\S+)/.exec(code.className)?.[1];
  frameCode(code, language, isClosed);
  const unsafeHtml = isClosed && language && (await highlight(code.textContent, language));
  if (unsafeHtml) code.innerHTML = DOMPurify.sanitize(unsafeHtml, ALLOWED_IN_CODE);
}

/** Make a table scrollable, also by keyboard. */
function frameTable(table) {
  const frame = document.createElement("div");
  frame.className = "table-frame";
  frame.tabIndex = 0;
  table.replaceWith(frame);
  frame.append(table);
}
