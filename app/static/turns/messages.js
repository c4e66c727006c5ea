// The shown branch of a conversation. A message is rendered again only if something of it has changed.

import { Component } from "preact";
import { useLayoutEffect } from "preact/hooks";
import { html } from "../parts/html.js";
import { lazy } from "../parts/lazy.js";
import { obstacleOf } from "../tree/continuation.js";
import { cutInForce, cutsOf, isSummary, isTyped } from "../tree/cut.js";
import { turnsOf } from "../tree/turns.js";
import { Answer } from "./answer_view.js";
import { Question } from "./question_view.js";

const SummaryAsk = lazy((again) => import("./summary_ask.js" + again), "SummaryAsk", "turns/context.css");
const Results = lazy((again) => import("./results_view.js" + again), "Results", "parts/parts.css");
const Sides = lazy((again) => import("./sides.js" + again), "Sides", "turns/sides.css");
const CutMark = lazy((again) => import("./cut_mark.js" + again), "CutMark", "turns/context.css");

/**
 * @param {{conversation: import("../conversation/conversation.js").Conversation, model: string | null, actions: any, canAsk: boolean}} props
 *   `model` is the one that the server runs; `actions` are functions of a message, the same ones in each rendering
 */
export function Messages({ conversation, model, actions, canAsk }) {
  const { messages, editing } = conversation;
  // The button that began an editing gets the focus back.
  useLayoutEffect(() => () => {
    const button = /** @type {any} */ (document.querySelector(`[data-edit="${editing}"]`));
    if (document.activeElement === document.body) button?.focus();
  }, [editing]);
  const last = messages.at(-1);
  const firstSent = cutInForce(messages)?.from ?? 0;
  const nodes = turnsOf(messages).flatMap(({ at, question, messages: turn }) => turn.map((message, index) => {
    const place = {
      isLast: message === last,
      isSent: at + index >= firstSent,
      hasResults: Boolean(turn[index + 1]?.results),
      showsTokens: Boolean(conversation.settings.token_probabilities),
      canAsk,
    };
    const answers = conversation.besides(message);
    const shown = answers.map((each, number) => {
      const own = {
        ...place,
        isEditing: editing === each.id,
        // Its question may go back into the field.
        canTakeBack: index === 1 && Boolean(question) && isTyped(question) && answers.length === 1,
        deletes: deletedBy(question, [...turn.slice(0, index), each], conversation),
        // Summaries are not asked for with the settings that say what answers look like.
        obstacle: obstacleOf(each, isSummary(question) ? {} : conversation.settings, model),
        side: answers.length > 1 ? `${number + 1} of ${answers.length}` : "",
      };
      const branch = conversation.branches(each);
      const look = [each.version, each.state, branch.number, branch.count, branch.isRepeated, ...Object.values(own)].join(" ");
      return html`<${Message} key=${each.id} look=${look} message=${each} branch=${branch} ...${own}
        conversation=${conversation} actions=${actions} />`;
    });
    return answers.length > 1 ? html`<${Sides} key=${answers[0].id} answers=${answers} fallback=${shown}>${shown}<//>` : shown[0];
  }));
  for (const cut of cutsOf(messages).reverse()) {
    nodes.splice(cut.from, 0, html`<${CutMark} key=${`cut ${cut.message.id}`} cut=${cut} conversation=${conversation} />`);
  }
  return nodes;
}

/** What is deleted with the last message of the beginning of a turn, see deletion.js: "turn", "summary" or "version". */
function deletedBy(question, begun, conversation) {
  if (begun.slice(1).some((message) => conversation.hasVersions(message))) return "version";
  return isSummary(question) ? "summary" : "turn";
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
