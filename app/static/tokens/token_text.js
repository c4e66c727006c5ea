// The text of one answer, token by token. Those that were in doubt are underlined; a token that the pointer, a finger or the
// keyboard is at shows what the model might have written there.

import { Component, createRef } from "preact";
import { html } from "../parts/html.js";
import { doubtOf } from "../tree/probabilities.js";
import { TokenTip } from "./token_tip.js";

/** `version` changes with the tokens, `id` is the answer's. @extends {Component<{id: string, tokens: any[], version: number}>} */
export class TokenText extends Component {
  #root = createRef();
  #tip = createRef();
  /** @type {TokenTip | null} */
  #shown = null;
  /** Of which there is an element. @type {any[]} */
  #tokens = [];

  shouldComponentUpdate({ version }) {
    return version !== this.props.version;
  }

  componentDidMount() {
    this.#shown = new TokenTip(this.#root.current, this.#tip.current, (element) => this.#tokens[indexOf(element)]);
    this.componentDidUpdate();
  }

  componentWillUnmount() {
    this.#shown.end();
  }

  componentDidUpdate() {
    const { tokens } = this.props;
    const root = this.#root.current;
    const numSame = tokens.findIndex((token, index) => !isSame(token, this.#tokens[index]));
    const from = numSame < 0 ? tokens.length : numSame;
    while (root.childElementCount > from) root.lastElementChild.remove();
    root.append(...tokens.slice(from).map(elementOf));
    this.#tokens = tokens;
  }

  render({ id }) {
    return html`
      <div class="token-text" ref=${this.#root} role="group" tabindex="0" dir="auto" aria-label="The answer, token by token"></div>
      <div class="token-tip" id=${`token-tip-${id}`} ref=${this.#tip} popover="manual" role="tooltip"></div>
    `;
  }
}

/** Another page's tokens are others with each storing of them. */
const isSame = (token, other) => token === other || (token.text === other?.text && token.p === other.p);

const indexOf = (element) => [...element.parentElement.children].indexOf(element);

function elementOf(token) {
  const element = document.createElement("span");
  element.className = "token";
  element.textContent = token.text;
  const doubt = doubtOf(token);
  if (doubt) element.dataset.doubt = String(doubt);
  // Ends of lines have no width to underline.
  if (doubt && !token.text.replaceAll("\n", "")) element.dataset.blank = "";
  if (token.isEnd) element.dataset.end = "";
  return element;
}
