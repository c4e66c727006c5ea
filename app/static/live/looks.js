// How the live view is to look: the colours of the theme, the pixels of the screen, whether it may move, and what is beside it.

import { useEffect, useLayoutEffect, useState } from "preact/hooks";
import { readColours } from "./colours.js";

// live.css has the same width.
const ALONE = "(max-width: 64rem)";

/**
 * `isAlone` is whether the view covers the conversation.
 * @typedef {{colours: import("./colours.js").Colours, scale: number, isStill: boolean, isAlone: boolean}} Looks
 */

/**
 * The looks as they are now; null before the first rendering. A change renders the component again.
 * @param {{current: HTMLElement | null}} probe
 * @returns {Looks | null}
 */
export function useLooks(probe) {
  const [looks, setLooks] = useState(null);
  const read = () => setLooks({
    colours: readColours(probe.current),
    scale: devicePixelRatio,
    isStill: matchMedia("(prefers-reduced-motion: reduce)").matches,
    isAlone: matchMedia(ALONE).matches,
  });
  useLayoutEffect(read, []);
  useEffect(() => {
    const queries = ["(prefers-color-scheme: dark)", "(prefers-reduced-motion: reduce)"].map((query) => matchMedia(query));
    for (const query of queries) query.addEventListener("change", read);
    addEventListener("resize", read);
    const theme = new MutationObserver(read);
    theme.observe(document.documentElement, { attributeFilter: ["data-theme"] });
    return () => {
      for (const query of queries) query.removeEventListener("change", read);
      removeEventListener("resize", read);
      theme.disconnect();
    };
  }, []);
  return looks;
}
