// The figures of the engine, and what paging saves.

import { html } from "../parts/html.js";
import { formatDuration, formatRate } from "../tree/figures.js";

/** @param {{figures: import("./live_types.js").Figures, saving: {held: number, room: number, reserved: number} | null}} props */
export function EngineFigures({ figures, saving }) {
  const { tokens_per_s, first_token_ms, between_tokens_ms, hit_rate } = figures;
  return html`
    <dl class="live-figures">
      <${Figure} name="tokens a second" value=${formatRate(tokens_per_s)} />
      <${Figure} name="first token" ...${timeOf(first_token_ms)} />
      <${Figure} name="between tokens" ...${timeOf(between_tokens_ms)} />
      <${Figure} name="found in the cache" value=${hit_rate === null ? "–" : `${Math.round(100 * hit_rate)} %`} note="of prompts" />
      <${Figure} name="memory held" ...${savingOf(saving)} />
    </dl>
  `;
}

function Figure({ name, value, note = "" }) {
  return html`<div><dt>${name}</dt><dd><b>${value}</b> <span>${note}</span></dd></div>`;
}

const timeOf = (times) =>
  times ? { value: formatDuration(times.p50), note: `p95 ${formatDuration(times.p95)}` } : { value: "–", note: "last minute" };

/** Compared with a cache that keeps each request in one piece, as long as it may become. */
function savingOf(saving) {
  if (!saving) return { value: "–", note: "blocks" };
  return { value: `${saving.held}`, note: `blocks; in one piece ${saving.reserved}` };
}
