// The block map in the page: it fits its cells into the room it has, and tells the story of the block that is looked at.

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { FREE } from "../engine/states.js";
import { tellStory } from "../engine/story.js";
import { html } from "../parts/html.js";
import { BlockMap } from "./block_map.js";

// Of the height of the window.
const HEIGHT_SHARE = 0.42;
// Beside the tour and what it speaks of.
const NEAR_HEIGHT_SHARE = 0.2;
const LEAST_HEIGHT_PX = 200;
const LEAST_NEAR_HEIGHT_PX = 140;
// With reduced motion a ring does not fade: so often it is looked whether its time is over.
const STILL_MS = 250;

const FEWEST_SHOWN = 256;

/**
 * How many blocks are shown from near: the first ones, with all that are not free.
 * @param {Uint8Array} states
 */
function nearCount(states) {
  const last = states.findLastIndex((state) => state !== FREE);
  return Math.min(states.length, Math.max(FEWEST_SHOWN, 2 ** Math.ceil(Math.log2(last + 2))));
}

/** @param {[number, number]} flash @returns {[number, number]} */
const unfaded = ([index]) => [index, 1];

/**
 * @param {{picture: import("../engine/picture.js").Picture, looks: import("./looks.js").Looks, lit: number[] | null, isNear: boolean,
 *   onChoose: (story: ReturnType<import("../engine/picture.js").Picture["storyOf"]>) => void}} props `lit` has the ids of blocks, ascending;
 *   with `isNear` the map is lower, and free blocks at the end are not shown, so that the others are larger
 */
export function MapView({ picture, looks: { colours, scale, isStill }, lit, isNear, onChoose }) {
  const room = useRef(null);
  const cells = useRef(null);
  const marks = useRef(null);
  /** @type {{current: BlockMap | null}} */
  const map = useRef(null);
  const [size, setSize] = useState(null);
  const [block, setBlock] = useState(0);
  const [isSmall, setSmall] = useState(false);
  const numBlocks = picture.states.length;
  const count = isNear ? nearCount(picture.states) : numBlocks;
  useLayoutEffect(() => {
    map.current ??= new BlockMap(cells.current, marks.current);
    const measure = () => setSize({
      width: room.current.clientWidth,
      height: isNear
        ? Math.max(LEAST_NEAR_HEIGHT_PX, Math.round(innerHeight * NEAR_HEIGHT_SHARE))
        : Math.max(LEAST_HEIGHT_PX, Math.round(innerHeight * HEIGHT_SHARE)),
    });
    const observer = new ResizeObserver(measure);
    observer.observe(room.current);
    return () => observer.disconnect();
  }, [isNear]);
  useLayoutEffect(() => {
    if (!size) return;
    map.current.fit(count, size, scale, colours);
    map.current.paint(picture, null);
    setSmall(map.current.grid.isInBands);
  }, [count, size, scale, colours]);
  useLayoutEffect(() => {
    if (size) map.current.paint(picture, picture.takeChanged());
  });
  useEffect(() => {
    if (!size) return undefined;
    let frame = 0;
    /** @type {any} */
    let timer = 0;
    const mark = () => {
      const flashes = picture.flashesAt(performance.now()).filter(([index]) => index < count);
      const rings = isStill ? flashes.map(unfaded) : flashes;
      map.current.mark({ cursor: Math.min(block, count) - 1, lit: lit && lit.map((id) => id - 1).filter((index) => index < count), flashes: rings });
      if (flashes.length && isStill) timer = setTimeout(mark, STILL_MS);
      else if (flashes.length) frame = requestAnimationFrame(mark);
    };
    mark();
    return () => {
      cancelAnimationFrame(frame);
      clearTimeout(timer);
    };
  });

  const story = block > 0 && block <= count ? picture.storyOf(block, performance.now()) : null;
  const blockAt = ({ offsetX, offsetY }) => map.current.indexAt(offsetX, offsetY) + 1;
  const onKeyDown = (event) => {
    const next = map.current.grid.moved(Math.max(block, 1) - 1, event.key);
    if (next !== null) setBlock(block ? next + 1 : 1);
    else if (event.key === "Escape" && block) setBlock(0);
    else if (event.key === "Enter" && story) onChoose(story);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const choose = (event) => {
    const at = blockAt(event);
    setBlock(at);
    if (at) onChoose(picture.storyOf(at));
  };
  return html`
    <div class="live-map" ref=${room}>
      <canvas ref=${cells} aria-hidden="true"></canvas>
      <canvas ref=${marks} class="live-marks" tabindex="0" role="application" aria-roledescription="block map"
        aria-label=${`Map of ${count < numBlocks ? `the first ${count.toLocaleString("en")} of ` : ""}${numBlocks.toLocaleString("en")} blocks. Arrow keys go from block to block.`} aria-describedby="live-story"
        onPointerMove=${(event) => setBlock(blockAt(event))} onPointerLeave=${() => setBlock(0)} onBlur=${() => setBlock(0)}
        onClick=${choose} onKeyDown=${onKeyDown}></canvas>
    </div>
    <p class="live-story" id="live-story" aria-live="polite">
      ${story ? tellStory(story, picture.latest.block_size) : "Point at a block to read its story."}
      ${!story && count < numBlocks && ` These are the first ${count.toLocaleString("en")} of ${numBlocks.toLocaleString("en")}; the others are free.`}
      ${!story && isSmall && " Too small for patterns: shared blocks are nearer to the colour of the text, pinned and fenced ones have it."}</p>
  `;
}
