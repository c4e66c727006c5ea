// One answer: reasoning, tool calls, Markdown, its figures, and what can be done with it.

import { CopyButton } from "../parts/copy_button.js";
import { html } from "../parts/html.js";
import { lazy } from "../parts/lazy.js";
import { hasFailed, hasFinished, isCut, isOpen } from "../tree/answer.js";
import { formatDuration, formatRate } from "../tree/figures.js";
import { useGrowth } from "./growth.js";

/** Until it is there, an answer is shown with its marks. */
export const Prose = lazy((again) => import("../reading/prose.js" + again), "Prose");
const TokensView = lazy((again) => import("../tokens/tokens_view.js" + again), "TokensView", "tokens/tokens.css");
const Reasoning = lazy((again) => import("./reasoning.js" + again), "Reasoning", "parts/parts.css");
const ToolCalls = lazy((again) => import("./tool_calls.js" + again), "ToolCalls", "parts/parts.css");
const ResultsForm = lazy((again) => import("./results_form.js" + again), "ResultsForm", "parts/parts.css");
const Standing = lazy((again) => import("./standing.js" + again), "Standing", "parts/parts.css");
const Failure = lazy((again) => import("./failure.js" + again), "Failure", "parts/parts.css");
const Branches = lazy((again) => import("./branches.js" + again), "Branches", "parts/parts.css");
const Editor = lazy((again) => import("./editor.js" + again), "Editor", "parts/parts.css");

const ENDINGS = {
  repetition: "Ended, because it repeated itself.",
  context: "The conversation fills the model's context: drop or summarize older turns, or begin a new chat.",
  cancelled: "Stopped.",
  tool_calls: "The answer calls tools; this page runs none.",
};

const SAME = "The same as the answer before. The higher the temperature, the more answers differ.";

/** What Delete deletes, see messages.js. */
const DELETING = { version: "Delete this answer", summary: "Delete the summary", turn: "Delete question and answer" };

/** `props` are those of messages.js: the place of the answer in the conversation. */
export function Answer({ message, conversation, ...props }) {
  const { branch, isEditing, isLast, isSent, side, showsTokens, canTakeBack, canAsk, hasResults, obstacle, actions } = props;
  const isBeingWritten = isOpen(message);
  // Others of its request may still be.
  const isGrowing = isBeingWritten && !hasFinished(message);
  useGrowth(conversation, isBeingWritten);
  const prose = html`
    <${Prose} fallback=${html`<div class="prose plain" dir="auto">${message.text}</div>`} text=${message.text}
      version=${message.version} isOpen=${isGrowing} />`;
  const view = html`
    <article class="answer" data-message=${message.id} data-state=${isBeingWritten && !isGrowing ? "done" : message.state}
      data-sent=${isSent} aria-busy=${isGrowing}>
      ${side
        ? html`<h2 class="sides-number">Answer ${side}</h2>`
        : html`<h2 class="unseen">Quire answered${!isSent && ", not sent any more"}</h2>`}
      ${message.reasoning && html`
        <${Reasoning} text=${message.reasoning} ms=${message.reasoningMs} isOpen=${isGrowing && !message.text} />`}
      ${message.tokens?.length ? html`
        <${TokensView} fallback=${prose} message=${message} isWanted=${showsTokens}>${prose}<//>` : prose}
      ${message.tools?.length && html`<${ToolCalls} tools=${message.tools} />`}
      ${message.tools?.length && isLast && message.state === "done" && html`
        <${ResultsForm} message=${message} calls=${message.tools} canAsk=${canAsk}
          onSend=${(results) => actions.giveResults(message, results)} />`}
      ${message.error && html`
        <${Failure} fallback=${html`<p class="failure" role="alert">${message.error}</p>`} message=${message}
          canRetry=${isLast && canAsk} canContinue=${!obstacle} canTakeBack=${canTakeBack} actions=${actions} />`}
      <footer class="figures" aria-live="off">
        <${Figures} figures=${figuresOf(message)} isOpen=${isBeingWritten} />
        ${isGrowing && html`
          <${Standing} ...${standingOf(message)} />`}
        ${!isBeingWritten && html`<${Ending} message=${message} obstacle=${obstacle} hasResults=${hasResults}
          isRepeated=${branch.isRepeated && !side} />`}
        ${!isBeingWritten && html`<${Actions} message=${message} ...${props} />`}
      </footer>
    </article>
  `;
  if (!isEditing) return view;
  const cancel = () => actions.cancelEdit(message);
  return html`
    <${Editor} message=${message} kind="answer" fallback=${view} label="Edit the answer" save="Save" isShort=${false}
      onSave=${(text) => actions.saveAnswer(message, text)} onCancel=${cancel} onMissing=${cancel} />
  `;
}

function Ending({ message, obstacle, hasResults, isRepeated }) {
  const { state, finish, isEdited } = message;
  // The user has run them.
  if (hasResults && finish === "tool_calls") return null;
  const text = isEdited ? "Written by you." : state === "stopped" ? ENDINGS.cancelled : finish === "length" ? limitOf(message) : ENDINGS[finish];
  return html`
    ${isRepeated && html`<span class="ending">${SAME}</span>`}
    ${text && html`<span class="ending">${text} ${isCut(message) && obstacle}</span>`}
  `;
}

/** The limit that has ended an answer, and where it is set. */
function limitOf({ usage, figures }) {
  const tokens = usage?.completion_tokens ?? figures?.tokens;
  return `Length limit${tokens ? ` of ${tokens} ${tokens === 1 ? "token" : "tokens"}` : ""} reached: see Max tokens in the settings.`;
}

function Actions({ message, branch, side, deletes, obstacle, canAsk, actions }) {
  const { text } = message;
  const deleting = DELETING[deletes];
  return html`
    <span class="actions">
      ${side && html`
        <button type="button" class="quiet" onClick=${() => actions.choose(message)}>Go on with this one</button>`}
      ${!side && branch.count > 1 && html`<${Branches} branch=${branch} onStep=${(step) => actions.switchBranch(message, step)} />`}
      ${isCut(message) && text && !obstacle && html`
        <button type="button" class="copy" aria-label="Continue answer" disabled=${!canAsk}
          onClick=${() => actions.continueAnswer(message)}>Continue</button>`}
      ${!hasFailed(message) && html`
        <button type="button" class="copy" aria-label="Answer again" disabled=${!canAsk}
          onClick=${() => actions.regenerate(message)}>Again</button>`}
      ${text && html`
        <button type="button" class="copy" aria-label="Edit answer" data-edit=${message.id}
          onClick=${() => actions.edit(message)}>Edit</button>
        <${CopyButton} read=${() => text} label="Copy answer" />`}
      <button type="button" class="copy" aria-label=${deleting} title=${deleting}
        onClick=${() => actions.delete(message)}>Delete</button>
    </span>
  `;
}

/** Those of an open answer that this page writes are of now. */
const standingOf = ({ stream, position, numRefused, watch }) => ({ stream, position, numRefused, isElsewhere: !watch });
const figuresOf = ({ watch, figures, state }) => (watch && isOpen({ state }) ? watch.read(performance.now()) : figures);

function Figures({ figures, isOpen: isBeingWritten }) {
  if (!figures) return null;
  const { tokens, firstTokenMs, waitedMs, rate } = figures;
  if (firstTokenMs === null) {
    return isBeingWritten && html`<span class="waiting">Waiting ${formatDuration(waitedMs)}</span>`;
  }
  return html`
    <span class="rate" title="Speed after the first token"><b>${rate ? formatRate(rate) : "–"}</b> tokens/s</span>
    <span class="first-token" title="From sending the question to seeing the first token">
      first token <b>${formatDuration(firstTokenMs)}</b>
    </span>
    <span class="tokens"><b>${tokens.toLocaleString("en")}</b> ${tokens === 1 ? "token" : "tokens"}</span>
  `;
}
