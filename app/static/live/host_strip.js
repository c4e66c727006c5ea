// The blocks in the memory of the host, as a strip below the map: of swapped requests, and what is cached there.

import { html } from "../parts/html.js";

/** @param {{host: import("../engine/live_types.js").LiveState["host"], hueOf: (owner: number) => number}} props */
export function HostStrip({ host: { total, used, owners }, hueOf }) {
  if (!total) return null;
  const known = owners.reduce((sum, [, count]) => sum + count, 0);
  const rest = used - known;
  let from = rest;
  return html`
    <div class="live-host">
      <h3>In the host's memory <span class="soft">${known} of ${total} blocks swapped out${rest > 0 && `, ${rest} cached or of others`}</span></h3>
      <svg viewBox=${`0 0 ${total} 1`} preserveAspectRatio="none" aria-hidden="true">
        <rect class="free" width=${total} height="1" />
        <rect class="cached" width=${rest} height="1" />
        ${owners.map(([n, count]) => {
          from += count;
          return html`<rect data-hue=${hueOf(n)} x=${from - count} width=${count} height="1" />`;
        })}
      </svg>
    </div>
  `;
}
