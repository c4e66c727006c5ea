// One question and one answer of the conversation.

import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { copy } from "./clipboard.js";
import { formatDuration, formatRate } from "./figures.js";
import { html } from "./html.js";
import { MarkdownView } from "./markdown.js";
import { Standing } from "./standing.js";

const ENDINGS = { length: "The answer reached its length limit.", cancelled: "Stopped." };

/** The user's message, as plain text without Markdown. */
export function Question({ text }) {
  return html`
    <article class="question">
      <h2 class="unseen">You asked</h2>
      <p dir="auto">${text}</p>
    </article>
  `;
}

/** The model's answer with its figures; it is rendered again when `version` changes. */
export function Answer({ answer, version, onRetry, onEdit }) {
  const isOpen = answer.state === "waiting" || answer.state === "streaming";
  const prose = useMemo(() => html`<${Prose} text=${answer.text} isOpen=${isOpen} />`, [version]);
  const ending = answer.state === "stopped" ? ENDINGS.cancelled : ENDINGS[answer.finish];
  return html`
    <article class="answer" data-state=${answer.state} aria-busy=${isOpen}>
      <h2 class="unseen">Quire answered</h2>
      ${prose}
      ${answer.error && html`
        <p class="failure" role="alert">
          <span dir="auto">${answer.error} ${answer.isReturned && "Your message is back in the field below."}</span>
          ${onEdit && html`<button type="button" class="quiet" onClick=${onEdit}>Edit</button>`}
          ${onRetry && html`<button type="button" class="quiet" onClick=${onRetry}>Try again</button>`}
        </p>
      `}
      <footer class="figures" aria-live="off">
        <${Figures} figures=${answer.figures ?? answer.watch.read(performance.now())} isOpen=${isOpen} />
        ${isOpen && html`<${Standing} stream=${answer.stream} />`}
        ${!isOpen && ending && html`<span class="ending">${ending}</span>`}
        ${!isOpen && answer.text && html`<${CopyAnswer} text=${answer.text} />`}
      </footer>
    </article>
  `;
}

function Prose({ text, isOpen }) {
  const root = useRef(null);
  const view = useRef(null);
  useLayoutEffect(() => {
    view.current ??= new MarkdownView(root.current);
    if (isOpen) view.current.stream(text);
    else view.current.finish(text);
  });
  return html`<div class="prose" ref=${root}></div>`;
}

function Figures({ figures: { tokens, firstTokenMs, waitedMs, rate }, isOpen }) {
  if (firstTokenMs === null) return isOpen && html`<span class="waiting">Waiting ${formatDuration(waitedMs)}</span>`;
  return html`
    <span class="rate" title="Speed after the first token"><b>${rate ? formatRate(rate) : "–"}</b> tokens/s</span>
    <span class="first-token" title="From sending the question to seeing the first token">
      first token <b>${formatDuration(firstTokenMs)}</b>
    </span>
    <span class="tokens"><b>${tokens}</b> ${tokens === 1 ? "token" : "tokens"}</span>
  `;
}

function CopyAnswer({ text }) {
  const [label, setLabel] = useState("Copy");
  const onClick = async () => {
    setLabel((await copy(text)) ? "Copied" : "Not copied");
    setTimeout(() => setLabel("Copy"), 1600);
  };
  return html`<button type="button" class="copy" onClick=${onClick} aria-label="Copy answer">${label}</button>`;
}
