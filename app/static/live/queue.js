// The requests, in the lane of their state; those of a lane move when one of them comes or goes.

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

/** One request, with how much of it is computed: lighter for its prompt, plain for its answer; of another's, its blocks. */
function Request({ group, isLit, onChoose }) {
  const { n, hue, own, state, prompt, computed, output, preemptions } = group;
  const words = wordsOf(group);
  return html`
    <button type="button" class="live-request" data-hue=${hue} aria-pressed=${isLit} title=${words} onClick=${() => onChoose(n)}>
      <span class="unseen">Request ${n}: ${words}</span>
      <b aria-hidden="true">${n}</b>
      ${own && html`<svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">${barOf(group).map(([name, x, width]) => html`
        <rect class=${name} x=${x} width=${width} height="10" />`)}</svg>`}
      <span aria-hidden="true">${!own ? heldBy(group) : computed < prompt ? `${computed}/${prompt}` : `${output}/${mostOf(group)}`}</span>
      ${(state === "preempted" || preemptions > 0) && html`<span class="live-again" aria-hidden="true">↺</span>`}
    </button>
  `;
}

/** Parts of the bar `[class, x, width]`, of 100: read of the prompt, the rest of it, written of the answer. */
function barOf(group) {
  const { prompt, computed, output } = group;
  if (!prompt) return [];
  const unit = 100 / (prompt + mostOf(group));
  const read = Math.min(computed, prompt) * unit;
  return [["prompt", 0, prompt * unit], ["read", 0, read], ["written", prompt * unit, output * unit]];
}

/** How many tokens a request may write: the limit is that of each of its answers. */
const mostOf = ({ limit, tables }) => limit * Math.max(1, tables.length);

const heldBy = ({ blocks }) => `${blocks} ${blocks === 1 ? "block" : "blocks"}`;

function wordsOf(group) {
  const { own, state, prompt, computed, output, cached, preemptions } = group;
  const held = heldBy(group);
  if (!own || !prompt) return `${state}, ${held}`;
  const parts = [state, `${Math.min(computed, prompt)} of ${prompt} prompt tokens computed`];
  if (cached) parts.push(`${cached} of them found in the cache`);
  parts.push(`${output} of at most ${mostOf(group)} tokens written`, held);
  if (preemptions) parts.push(`preempted ${preemptions === 1 ? "once" : `${preemptions} times`}`);
  return parts.join(", ");
}

/** Let requests that are elsewhere in their lane than before move there. Returns the new places, by request. */
function moveFrom(root, before, isStill) {
  const places = new Map();
  for (const item of root.querySelectorAll("[data-request]")) {
    const { left, top } = item.getBoundingClientRect();
    const { top: origin } = root.getBoundingClientRect();
    const place = { item, left, top: top - origin };
    const old = before.get(item.dataset.request);
    // In another lane it is another item: on its way there it would cover others.
    if (old?.item === item && !isStill && (old.left !== left || old.top !== place.top)) {
      item.animate({ transform: [`translate(${old.left - left}px, ${old.top - place.top}px)`, "none"] }, { duration: MOVE_MS, easing: "ease-out" });
    }
    places.set(item.dataset.request, place);
  }
  return places;
}
