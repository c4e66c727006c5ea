// The block map in the page: it fits its cells into the room it has, and tells the story of the block that is looked at.

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { tellStory } from "../engine/story.js";
import { html } from "../parts/html.js";
import { BlockMap } from "./block_map.js";

// Of the height of the window.
const HEIGHT_SHARE = 0.42;
const LEAST_HEIGHT_PX = 200;
// With reduced motion a ring does not fade: so often it is looked whether its time is over.
const STILL_MS = 250;

/** @param {[number, number]} flash @returns {[number, number]} */
const unfaded = ([index]) => [index, 1];

/**
 * @param {{picture: import("../engine/picture.js").Picture, looks: import("./looks.js").Looks, lit: number[] | null,
 *   onChoose: (story: ReturnType<import("../engine/picture.js").Picture["storyOf"]>) => void}} props `lit` has the ids of blocks, ascending
 */
export function MapView({ picture, looks: { colours, scale, isStill }, lit, onChoose }) {
  const room = useRef(null);
  const cells = useRef(null);
  const marks = useRef(null);
  /** @type {{current: BlockMap | null}} */
  const map = useRef(null);
  const [size, setSize] = useState(null);
  const [block, setBlock] = useState(0);
  const [isSmall, setSmall] = useState(false);
  const count = picture.states.length;
  useLayoutEffect(() => {
    map.current = new BlockMap(cells.current, marks.current);
    const measure = () => setSize({
      width: room.current.clientWidth,
      height: Math.max(LEAST_HEIGHT_PX, Math.round(innerHeight * HEIGHT_SHARE)),
    });
    const observer = new ResizeObserver(measure);
    observer.observe(room.current);
    return () => observer.disconnect();
  }, []);
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
      const flashes = picture.flashesAt(performance.now());
      const rings = isStill ? flashes.map(unfaded) : flashes;
      map.current.mark({ cursor: Math.min(block, count) - 1, lit: lit && lit.map((id) => id - 1), flashes: rings });
      if (flashes.length && isStill) timer = setTimeout(mark, STILL_MS);
      else if (flashes.length) frame = requestAnimationFrame(mark);
    };
    mark();
    return () => {
      cancelAnimationFrame(frame);
      clearTimeout(timer);
    };
  });

  const story = block > 0 && block <= count ? picture.storyOf(block) : null;
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
        aria-label=${`Map of ${count.toLocaleString("en")} blocks. Arrow keys go from block to block.`} aria-describedby="live-story"
        onPointerMove=${(event) => setBlock(blockAt(event))} onPointerLeave=${() => setBlock(0)} onBlur=${() => setBlock(0)}
        onClick=${choose} onKeyDown=${onKeyDown}></canvas>
    </div>
    <p class="live-story" id="live-story" aria-live="polite">
      ${story ? tellStory(story, picture.latest.block_size) : "Point at a block to read its story."}
      ${!story && isSmall && " Too small for patterns: shared blocks are nearer to the colour of the text, pinned and fenced ones have it."}</p>
  `;
}
