// The shown branch of a conversation. A message is rendered again only if something of it has changed.

import { Component } from "preact";
import { useLayoutEffect } from "preact/hooks";
import { html } from "../shell/html.js";
import { lazy } from "../shell/lazy.js";
import { Answer } from "./answer_view.js";
import { cutsOf } from "./cut.js";
import { Question } from "./question_view.js";

const CutMark = lazy((again) => import("./cut_mark.js" + again), "CutMark", "context.css");

const Results = lazy((again) => import("./results_view.js" + again), "Results", "parts.css");

/**
 * @param {{conversation: import("./conversation.js").Conversation, actions: any, canAsk: boolean}} props
 *   `actions` are functions of a message, the same ones in each rendering
 */
export function Messages({ conversation, actions, canAsk }) {
  const { messages, editing } = conversation;
  // The button that began an editing gets the focus back.
  useLayoutEffect(() => () => {
    const button = /** @type {any} */ (document.querySelector(`[data-edit="${editing}"]`));
    if (document.activeElement === document.body) button?.focus();
  }, [editing]);
  const last = messages.at(-1);
  const nodes = messages.map((message) => {
    const { number, count } = conversation.branches(message);
    const isEditing = editing === message.id;
    const look = [message.version, number, count, isEditing, message === last, canAsk, message.state].join(" ");
    return html`<${Message} key=${message.id} look=${look} message=${message} branch=${{ number, count }}
      isEditing=${isEditing} isLast=${message === last} canAsk=${canAsk} conversation=${conversation} actions=${actions} />`;
  });
  for (const cut of cutsOf(messages).reverse()) {
    nodes.splice(cut.from, 0, html`<${CutMark} key=${`cut ${cut.message.id}`} cut=${cut} conversation=${conversation} />`);
  }
  return nodes;
}

/** Nodes that are kept for the next rendering would keep the whole tree of theirs. */
class Message extends Component {
  shouldComponentUpdate({ look, message }) {
    return look !== this.props.look || message !== this.props.message;
  }

  render({ message, ...props }) {
    const View = message.results ? Results : message.role === "user" ? Question : Answer;
    return html`<${View} message=${message} ...${props} />`;
  }
}
