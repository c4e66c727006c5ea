// What an open answer waits for, in a few words, where its text does not say it.

import { html } from "./html.js";

const WORDS = {
  held: "until the server is back",
  queued: "in the queue",
  preempted: "waiting for memory: other answers go first",
  paused: "paused until this page has caught up",
};

/** Nothing while the answer simply goes on; `stream` is null while the server is away. */
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
    <span>reading the prompt</span>
    <progress max=${total} value=${done} aria-label="Prompt read"></progress>
    <span>${percent} %</span>
  `;
}
