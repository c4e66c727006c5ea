// Shows the place in the conversation where words were found: scrolls there, and marks the words until the user does
// something else.

import { useEffect } from "preact/hooks";
import { patternOf } from "../store/excerpt.js";

// The name of the marks in sidebar.css.
const NAME = "found";
// Parts of a message that are not its text.
const BESIDE = "h2, footer, button, summary";

/** @param {{place: import("../store/search.js").Place, follower: import("./follower.js").Follower}} props */
export function FoundPlace({ place, follower }) {
  useEffect(() => {
    const message = document.querySelector(`[data-message="${place.message}"]`);
    // The branch may have been left meanwhile.
    if (!message) return undefined;
    const end = new AbortController();
    const forget = () => {
      globalThis.CSS?.highlights?.delete(NAME);
      end.abort();
    };
    for (const name of ["keydown", "pointerdown"]) addEventListener(name, forget, end);
    const show = () => end.signal.aborted || showIn(message, place.words, follower);
    const unfold = /** @type {HTMLElement | null} */ (message.querySelector('.unfold[aria-expanded="false"]'));
    if (!unfold || rangesOf(message, place.words).length) show();
    else {
      unfold.click();
      // Preact renders it in a microtask, which was queued before this one.
      queueMicrotask(show);
    }
    return forget;
  }, [place]);
  return null;
}

function showIn(message, words, follower) {
  const ranges = rangesOf(message, words);
  const target = ranges[0]?.startContainer.parentElement ?? message;
  for (let part = target.closest("details"); part; part = part.parentElement.closest("details")) part.open = true;
  follower.goTo(target, { block: ranges.length ? "center" : "start" });
  // Firefox has it since 140.
  globalThis.CSS?.highlights?.set(NAME, new Highlight(...ranges));
}

function rangesOf(message, words) {
  const walker = document.createTreeWalker(message, NodeFilter.SHOW_TEXT);
  const pattern = patternOf(words);
  const ranges = [];
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (node.parentElement.closest(BESIDE)) continue;
    for (const { index, 0: word } of node.textContent.matchAll(pattern)) {
      const range = new Range();
      range.setStart(node, index);
      range.setEnd(node, index + word.length);
      ranges.push(range);
    }
  }
  return ranges;
}
