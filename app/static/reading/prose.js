// The text of one answer as Markdown. The libraries for it are the larger part of the page, which is painted without them.

import { Component, createRef } from "preact";
import { html } from "../parts/html.js";
import { MarkdownView } from "./markdown.js";

/** `version` changes with the text. @extends {Component<{text: string, version: number, isOpen: boolean}>} */
export class Prose extends Component {
  #root = createRef();
  #view = null;

  shouldComponentUpdate({ version }) {
    return version !== this.props.version;
  }

  componentDidMount() {
    this.#view = new MarkdownView(this.#root.current);
    this.componentDidUpdate();
  }

  componentDidUpdate() {
    const { text, isOpen } = this.props;
    if (isOpen) this.#view.stream(text);
    else this.#view.finish(text);
  }

  render() {
    return html`<div class="prose" ref=${this.#root}></div>`;
  }
}
