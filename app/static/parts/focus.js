// Focus that would be lost, because the element that has it is removed.

import { useLayoutEffect } from "preact/hooks";

/**
 * Call `restore` after a rendering of the component that has removed the focused element.
 * @param {Element | null} root contains the elements that matter
 * @param {() => void} restore
 */
export function useKeptFocus(root, restore) {
  const focused = document.activeElement;
  const isInside = focused !== root && root?.contains(focused);
  useLayoutEffect(() => {
    if (isInside && document.activeElement === document.body) restore();
  });
}
