// The requests, in the lane of their state; a request that changes its state moves to its new lane.

import { useLayoutEffect, useRef } from "preact/hooks";
import { html } from "../parts/html.js";

const LANES = [
  { name: "Waiting", states: ["waiting", "preempted"] },
  { name: "Running", states: ["running"] },
  { name: "Paused", states: ["paused"] },
  { name: "Swapped", states: ["swapped"] },
];
const MOST_SHOWN = 24;
const MOVE_MS = 250;

/**
 * @param {{groups: import("../engine/picture.js").Group[], lit: number | null, onChoose: (number: number) => void, isStill: boolean}} props
 *   `lit` is the number of the request whose blocks are lit
 */
export function Queue({ groups, lit, onChoose, isStill }) {
  const root = useRef(null);
  const places = useRef(new Map());
  useLayoutEffect(() => {
    places.current = moveFrom(root.current, places.current, isStill);
  });
  return html`
    <section class="live-queue" aria-label="Requests" ref=${root}>
      ${LANES.map(({ name, states }) => {
        const found = groups.filter(({ state }) => states.includes(state));
        return html`
          <div class="live-lane" data-empty=${!found.length}>
            <h3>${name} <b>${found.length}</b></h3>
            <ul>
              ${found.slice(0, MOST_SHOWN).map((group) => html`
                <li key=${group.n} data-request=${group.n}>
                  <${Request} group=${group} isLit=${lit === group.n} onChoose=${onChoose} />
                </li>`)}
              ${found.length > MOST_SHOWN && html`<li class="soft">and ${found.length - MOST_SHOWN} more</li>`}
            </ul>
          </div>`;
      })}
    </section>
  `;
}

/** One request, with how much of it is computed: lines for its prompt, plain for its answer. */
function Request({ group, isLit, onChoose }) {
  const { n, hue, state, prompt, computed, output, limit, preemptions } = group;
  const words = wordsOf(group);
  return html`
    <button type="button" class="live-request" data-hue=${hue} aria-pressed=${isLit} title=${words} onClick=${() => onChoose(n)}>
      <span class="unseen">Request ${n}: ${words}</span>
      <b aria-hidden="true">${n}</b>
      <svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">${barOf(group).map(([name, x, width]) => html`
        <rect class=${name} x=${x} width=${width} height="10" />`)}</svg>
      <span aria-hidden="true">${prompt === null || prompt === undefined ? "" : computed < prompt ? `${computed}/${prompt}` : `${output}/${limit}`}</span>
      ${(state === "preempted" || preemptions > 0) && html`<span class="live-again" aria-hidden="true">↺</span>`}
    </button>
  `;
}

/** Parts of the bar `[class, x, width]`, of 100: read of the prompt, the rest of it, written of the answer. */
function barOf({ prompt, computed, output, limit }) {
  if (!prompt) return [];
  const unit = 100 / (prompt + limit);
  const read = Math.min(computed, prompt) * unit;
  return [["prompt", 0, prompt * unit], ["read", 0, read], ["written", prompt * unit, output * unit]];
}

function wordsOf({ own, state, blocks, prompt, computed, output, limit, cached, preemptions }) {
  const held = `${blocks} ${blocks === 1 ? "block" : "blocks"}`;
  if (!own || !prompt) return `${state}, ${held}`;
  const parts = [state, `${Math.min(computed, prompt)} of ${prompt} prompt tokens computed`];
  if (cached) parts.push(`${cached} of them found in the cache`);
  parts.push(`${output} of at most ${limit} tokens written`, held);
  if (preemptions) parts.push(`preempted ${preemptions === 1 ? "once" : `${preemptions} times`}`);
  return parts.join(", ");
}

/** Let requests that are elsewhere than before move there. Returns the new places, by request. */
function moveFrom(root, before, isStill) {
  const places = new Map();
  for (const item of root.querySelectorAll("[data-request]")) {
    const { left, top } = item.getBoundingClientRect();
    const { top: origin } = root.getBoundingClientRect();
    const place = [left, top - origin];
    const old = before.get(item.dataset.request);
    if (old && !isStill && (old[0] !== place[0] || old[1] !== place[1])) {
      item.animate({ transform: [`translate(${old[0] - place[0]}px, ${old[1] - place[1]}px)`, "none"] }, { duration: MOVE_MS, easing: "ease-out" });
    }
    places.set(item.dataset.request, place);
  }
  return places;
}
