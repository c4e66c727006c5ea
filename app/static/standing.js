// The reason why an open answer is waiting, in a few words.

import { html } from "./html.js";

const WORDS = {
  held: "until the server is back",
  queued: "in the queue",
  preempted: "preempted, waiting for memory",
  paused: "paused until this page catches up",
};

/** Nothing while tokens arrive; `stream` is null while there is no connection. */
export function Standing({ stream }) {
  const phase = phaseOf(stream);
  const words = phase === "prefill" ? html`<${Reading} ...${stream.progress} />` : WORDS[phase];
  return words && html`<span class="standing" data-phase=${phase}>${words}</span>`;
}

function phaseOf(stream) {
  if (!stream) return "held";
  return stream.state === "paused" ? "paused" : stream.progress?.phase;
}

function Reading({ done, total }) {
  const percent = Math.floor((100 * done) / Math.max(total, 1));
  return html`
    <span>processing the prompt</span>
    <progress max=${total} value=${done} aria-label="Prompt processed"></progress>
    <span>${percent} %</span>
  `;
}
