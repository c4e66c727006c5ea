// The blocks of swapped requests in the memory of the host, as a strip beside the map.

import { html } from "../parts/html.js";

/** @param {{host: import("../engine/live_types.js").LiveState["host"], hueOf: (owner: number) => number}} props */
export function HostStrip({ host: { total, used, owners }, hueOf }) {
  if (!total) return null;
  const known = owners.reduce((sum, [, count]) => sum + count, 0);
  const parts = [...owners.map(([n, count]) => [hueOf(n), count]), [0, used - known]].filter(([, count]) => count > 0);
  let from = 0;
  return html`
    <div class="live-host">
      <h3>Swapped out <span class="soft">${used} of ${total} blocks in the host's memory</span></h3>
      <svg viewBox=${`0 0 ${total} 1`} preserveAspectRatio="none" aria-hidden="true">
        <rect class="free" width=${total} height="1" />
        ${parts.map(([hue, count]) => {
          from += count;
          return html`<rect data-hue=${hue} x=${from - count} width=${count} height="1" />`;
        })}
      </svg>
    </div>
  `;
}
