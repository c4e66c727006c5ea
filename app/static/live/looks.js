// How the live view is to look: the colours of the theme, the pixels of the screen, and whether it may move.

import { useEffect, useLayoutEffect, useState } from "preact/hooks";
import { readColours } from "./colours.js";

/** @typedef {{colours: import("./colours.js").Colours, scale: number, isStill: boolean}} Looks */

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
