// The timeline in the page: a column for each step, and in words the one that is looked at, or else the newest.

import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { tellStep } from "../engine/story.js";
import { html } from "../parts/html.js";
import { Timeline } from "./timeline.js";

const HEIGHT_PX = 96;
// Steps that are held after the last one that has read something.
const AFTER_READING = 24;

/**
 * The steps since a time, up to some after the last one that has read a part of a prompt; all, if none has.
 * @param {Step[]} steps
 * @param {number} since
 */
export function untilRead(steps, since) {
  const own = steps.filter(({ at }) => at > since);
  const last = own.findLastIndex(({ shares }) => shares.some(({ prompt }) => prompt));
  return last < 0 ? own : own.slice(0, last + 1 + AFTER_READING);
}

/** @typedef {import("../engine/picture.js").Step} Step */

/**
 * @param {{steps: Step[], targetMs: number, since: number | null, looks: import("./looks.js").Looks}} props `targetMs` is 0 without one;
 *   with `since` the timeline stays as it is then, with steps since that time alone, of which the last ones that have read something are in sight
 */
export function TimelineView({ steps: newest, targetMs, since, looks: { colours, scale } }) {
  const canvas = useRef(null);
  /** @type {{current: Step[] | null}} */
  const held = useRef(null);
  const isHeld = since !== null;
  held.current = isHeld ? (held.current ?? untilRead(newest, since)) : null;
  const steps = held.current ?? newest;
  /** @type {{current: Timeline | null}} */
  const timeline = useRef(null);
  const [width, setWidth] = useState(0);
  // The time of the step that is looked at: it moves to the left meanwhile.
  const [at, setAt] = useState(null);
  const index = at === null ? -1 : steps.findIndex((step) => step.at === at);
  useLayoutEffect(() => {
    timeline.current = new Timeline(canvas.current);
    const observer = new ResizeObserver(() => setWidth(canvas.current.parentElement.clientWidth));
    observer.observe(canvas.current.parentElement);
    return () => observer.disconnect();
  }, []);
  useLayoutEffect(() => timeline.current.fit({ width, height: HEIGHT_PX }, scale), [width, scale]);
  useLayoutEffect(() => {
    timeline.current.paint(steps, targetMs, colours, index < 0 ? -1 : steps.length - 1 - index, isHeld);
  });
  const look = (age) => setAt(steps.at(-1 - Math.max(0, Math.min(age, steps.length - 1)))?.at ?? null);
  const age = index < 0 ? 0 : steps.length - 1 - index;
  const onKeyDown = (event) => {
    const move = { ArrowLeft: 1, ArrowRight: -1 }[event.key];
    if (!move) return;
    event.preventDefault();
    look(age + move);
  };
  const shown = steps[index] ?? steps.at(-1);
  return html`
    <section class="live-timeline" aria-label="Steps">
      <h3>Steps <span class="soft">each as high as it was long${targetMs > 0 && `; the target is ${Math.round(targetMs)} ms`}${isHeld && "; held until you go on"}</span></h3>
      <div class="live-steps">
        <canvas ref=${canvas} tabindex="0" role="application" aria-roledescription="timeline" aria-describedby="live-step"
          aria-label="The newest steps. Arrow keys go from step to step." onPointerMove=${({ offsetX }) => look(timeline.current.ageAt(offsetX))}
          onPointerLeave=${() => setAt(null)} onBlur=${() => setAt(null)} onKeyDown=${onKeyDown}></canvas>
      </div>
      <p class="live-story" id="live-step">${shown ? tellStep(shown) : "No step yet: the engine computes nothing while nobody asks."}</p>
    </section>
  `;
}
