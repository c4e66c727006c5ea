// What the model might have written in the place of one token: shown at the token that the pointer is over, that was touched,
// or that the arrow keys have led to.
//
// It stays while the pointer is over it, and goes with Escape, a touch elsewhere, and when the text is scrolled.

import { describe, formatProbability, spell } from "./spelling.js";

const GAP_PX = 4;

export class TokenTip {
  #root;
  #tip;
  #tokenOf;
  /** The element of the token that is told about. @type {HTMLElement | null} */
  #at = null;
  #ending = new AbortController();

  /**
   * @param {HTMLElement} root its children are the tokens
   * @param {HTMLElement} tip beside it, with an id
   * @param {(element: HTMLElement) => any} tokenOf
   */
  constructor(root, tip, tokenOf) {
    this.#root = root;
    this.#tip = tip;
    this.#tokenOf = tokenOf;
    const { signal } = this.#ending;
    root.addEventListener("pointerover", ({ target, pointerType }) => pointerType === "mouse" && this.#show(target), { signal });
    root.addEventListener("click", ({ target }) => this.#show(target), { signal });
    root.addEventListener("focusin", ({ target }) => this.#show(target), { signal });
    root.addEventListener("focusout", () => this.#hide(), { signal });
    root.addEventListener("keydown", (event) => this.#step(event), { signal });
    for (const each of [root, tip]) each.addEventListener("pointerleave", (event) => this.#left(event), { signal });
    addEventListener("keydown", ({ key }) => key === "Escape" && this.#hide(), { signal });
    addEventListener("pointerdown", ({ target }) => this.#isInside(target) || this.#hide(), { signal });
    addEventListener("scroll", () => this.#hide(), { signal, capture: true });
  }

  /** Hide it for ever. */
  end() {
    this.#hide();
    this.#ending.abort();
  }

  #isInside(element) {
    return element instanceof Node && (this.#root.contains(element) || this.#tip.contains(element));
  }

  #left({ pointerType, relatedTarget }) {
    if (pointerType === "mouse" && !this.#isInside(relatedTarget) && document.activeElement !== this.#at) this.#hide();
  }

  /** Go from token to token, up and down to those in doubt. */
  #step(event) {
    const isForward = ["ArrowRight", "ArrowDown"].includes(event.key);
    if (!isForward && !["ArrowLeft", "ArrowUp"].includes(event.key)) return;
    if (event.shiftKey || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const tokens = /** @type {HTMLElement[]} */ ([...this.#root.children]);
    const at = tokens.indexOf(/** @type {HTMLElement} */ (event.target));
    const others = isForward ? tokens.slice(at + 1) : tokens.slice(0, Math.max(at, 0)).reverse();
    const next = event.key.endsWith("Down") || event.key.endsWith("Up") ? others.find(({ dataset }) => dataset.doubt) : others[0];
    if (!next) return;
    next.tabIndex = -1;
    next.focus();
  }

  #show(element) {
    if (element.parentElement !== this.#root || element === this.#at) return;
    this.#hide();
    this.#at = element;
    element.setAttribute("aria-describedby", this.#tip.id);
    this.#fill(describe(this.#tokenOf(element)));
    this.#tip.showPopover();
    this.#place();
  }

  #hide() {
    this.#at?.removeAttribute("aria-describedby");
    this.#at = null;
    if (this.#tip.matches(":popover-open")) this.#tip.hidePopover();
  }

  #fill({ words, choices }) {
    const head = make("p", words);
    const list = make("ol");
    for (const { text, p, isChosen } of choices) {
      const item = make("li", "", make("bdi", spell(text) || "no text"), make("span", formatProbability(p)));
      if (isChosen) item.dataset.chosen = "";
      list.append(item);
    }
    this.#tip.replaceChildren(head, ...(choices.length ? [list] : []));
  }

  /** Below the end of the token, or above it if there is no room. */
  #place() {
    const { left, top, bottom } = [...this.#at.getClientRects()].at(-1) ?? this.#at.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height, style } = this.#tip;
    const isAbove = bottom + GAP_PX + height > innerHeight && top - GAP_PX - height >= 0;
    style.top = `${isAbove ? top - GAP_PX - height : bottom + GAP_PX}px`;
    style.left = `${Math.max(GAP_PX, Math.min(left, document.documentElement.clientWidth - width - GAP_PX))}px`;
  }
}

function make(name, text = "", ...children) {
  const element = document.createElement(name);
  element.append(...(text ? [text] : []), ...children);
  return element;
}
