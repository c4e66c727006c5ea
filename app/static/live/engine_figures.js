// The figures of the engine, and what paging saves.

import { html } from "../parts/html.js";
import { formatDuration, formatRate } from "../tree/figures.js";

/** @param {{figures: import("../engine/live_types.js").Figures, saving: {held: number, room: number, reserved: number} | null}} props */
export function EngineFigures({ figures, saving }) {
  const { tokens_per_s, first_token_ms, between_tokens_ms, hit_rate, running } = figures;
  return html`
    <dl class="live-figures">
      <${Figure} name="tokens a second" value=${tokens_per_s ? formatRate(tokens_per_s) : "0"}
        note=${`${running} at once`} />
      <${Figure} name="first token" ...${timeOf(first_token_ms)} />
      <${Figure} name="between tokens" ...${timeOf(between_tokens_ms)} />
      <${Figure} name="cache hits" value=${hit_rate === null ? "–" : `${Math.round(100 * hit_rate)} %`} note="of prompt tokens" />
      <${Figure} name="blocks held" value=${saving?.held.toLocaleString("en") ?? "–"}
        note=${saving ? `in one piece ${saving.reserved.toLocaleString("en")}` : ""}
        title=${saving && savingOf(saving)} />
    </dl>
  `;
}

function Figure({ name, value, note = "", title = undefined }) {
  return html`<div title=${title}><dt>${name}</dt><dd><b>${value}</b> <span>${note}</span></dd></div>`;
}

const timeOf = (times) =>
  times ? { value: formatDuration(times.p50), note: `95 % in ${formatDuration(times.p95)}` } : { value: "–", note: "in the last minute" };

const savingOf = ({ held, room, reserved }) =>
  `Your requests hold ${held} blocks, with room for ${room} more tokens. A cache that keeps each request in one piece would reserve ${reserved} blocks for them, as many as they may need in the end.`;
