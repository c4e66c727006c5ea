// The shown branch of a conversation. A message is rendered again only if something of it has changed.

import { Component } from "preact";
import { useLayoutEffect } from "preact/hooks";
import { html } from "../shell/html.js";
import { lazy } from "../shell/lazy.js";
import { Answer } from "./answer_view.js";
import { cutInForce, cutsOf, isSummary, isTyped } from "./cut.js";
import { Question } from "./question_view.js";

const SummaryAsk = lazy((again) => import("./summary_ask.js" + again), "SummaryAsk", "context.css");
const Results = lazy((again) => import("./results_view.js" + again), "Results", "parts.css");
const CutMark = lazy((again) => import("./cut_mark.js" + again), "CutMark", "context.css");

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
  const firstSent = cutInForce(messages)?.from ?? 0;
  const nodes = messages.map((message, index) => {
    const { number, count } = conversation.branches(message);
    const isEditing = editing === message.id;
    const isSent = index >= firstSent;
    const look = [message.version, number, count, isEditing, message === last, canAsk, message.state, isSent].join(" ");
    return html`<${Message} key=${message.id} look=${look} message=${message} branch=${{ number, count }} isSent=${isSent}
      isEditing=${isEditing} isLast=${message === last} isSummary=${isSummary(messages[index - 1])}
      canTakeBack=${isTyped(messages[index - 1])} canAsk=${canAsk}
      conversation=${conversation} actions=${actions} />`;
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
    return html`<${viewOf(message)} message=${message} ...${props} />`;
  }
}

function viewOf(message) {
  if (message.role === "assistant") return Answer;
  if (message.results) return Results;
  return isSummary(message) ? SummaryAsk : Question;
}
