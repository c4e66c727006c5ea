// The reason why an open answer is waiting, in a few words.

import { html } from "../parts/html.js";

const WORDS = {
  elsewhere: "being written in another tab",
  crowded: "waiting to go on when fewer pages read this answer",
  held: "until the server is back",
  lost: "goes on when the server is back, if it has kept the answer",
  preempted: "preempted, waiting for memory",
  paused: "paused until this page catches up",
};

/**
 * Nothing while tokens arrive; `stream` is null while there is no connection, `position` is where its rest begins, and
 * `numRefused` how often the server had too many readers of it.
 */
export function Standing({ stream, position, numRefused, isElsewhere }) {
  const phase = isElsewhere ? "elsewhere" : phaseOf(stream, position, numRefused);
  const words = wordsOf(phase, stream);
  return words && html`<span class="standing" data-phase=${phase}>${words}</span>`;
}

function wordsOf(phase, stream) {
  if (phase === "prefill") return html`<${Reading} ...${stream.progress} />`;
  return phase === "queued" ? placeOf(stream.progress) : WORDS[phase];
}

/** Where the question stands in the server's queue, if the server has told it. */
function placeOf({ ahead }) {
  if (ahead === undefined) return "in the queue";
  return ahead ? `in the queue after ${ahead} ${ahead === 1 ? "other" : "others"}` : "next in the queue";
}

function phaseOf(stream, position, numRefused) {
  if (!stream && numRefused) return "crowded";
  if (!stream) return position ? "lost" : "held";
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
