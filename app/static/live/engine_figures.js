// The figures of the engine, and what paging saves.

import { html } from "../parts/html.js";
import { formatDuration, formatRate } from "../tree/figures.js";

/** @param {{figures: import("../engine/live_types.js").Figures, saving: import("../engine/picture.js").Picture["saving"]}} props */
export function EngineFigures({ figures, saving }) {
  const { tokens_per_s, first_token_ms, between_tokens_ms, hit_rate, running } = figures;
  return html`
    <dl class="live-figures">
      <${Figure} name="tokens/s" value=${tokens_per_s ? formatRate(tokens_per_s) : "0"}
        note=${`over 5 s, ${running} at once`}
        title="Tokens that the server has generated a second, for all requests, over the last five seconds." />
      <${Figure} name="first token" ...${timeOf(first_token_ms, "of ended answers")}
        title="Time to first token (TTFT) in the server, of the answers that ended in the last minute: half of them began sooner than this." />
      <${Figure} name="between tokens" ...${timeOf(between_tokens_ms, "in the last minute")}
        title="Inter-token latency (ITL) in the last minute: half of the tokens came sooner than this after the one before." />
      <${Figure} name="cache hits" value=${hit_rate === null ? "–" : `${Math.round(100 * hit_rate)} %`} note="of prompt tokens"
        title="Prompt tokens of the last minute that were in the prefix cache already, and not computed again." />
      <${Figure} name="blocks held" value=${saving?.held.toLocaleString("en") ?? "–"}
        note=${saving ? `in one piece ${saving.reserved.toLocaleString("en")}` : ""}
        title=${saving ? savingOf(saving) : "Blocks of the KV cache that your requests hold while they run."} />
      <${Figure} name="empty slots" value=${saving?.empty.toLocaleString("en") ?? "–"}
        note=${saving ? `${Math.round((100 * saving.empty) / saving.slots)} % of all` : ""}
        title=${saving ? emptyOf(saving) : "Slots for tokens in the blocks of your running requests that are not filled yet."} />
    </dl>
  `;
}

function Figure({ name, value, note = "", title = undefined }) {
  return html`<div title=${title}><dt>${name}</dt><dd><b>${value}</b> <span>${note}</span></dd></div>`;
}

const timeOf = (times, where) =>
  times ? { value: formatDuration(times.p50), note: `95 % in ${formatDuration(times.p95)}` } : { value: "none", note: where };

const savingOf = ({ held, reserved }) =>
  `Your requests hold ${held} blocks. A cache that keeps each request in one piece would reserve ${reserved} blocks for them, as many as they may need in the end.`;

const emptyOf = ({ held, empty, slots }) =>
  `A block has a slot for each of its tokens. Of the ${slots} slots in the ${held} blocks of your requests, ${empty} have no token yet: only the last block of an answer has such.`;
