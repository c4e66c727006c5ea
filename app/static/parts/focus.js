// Focus that would be lost, because the element that has it is removed.

import { useLayoutEffect } from "preact/hooks";

/**
 * After a rendering of the component that has removed the focused element, give the focus to the one that has its id now, or
 * call `restore`.
 * @param {Element | null} root contains the elements that matter
 * @param {() => void} restore
 */
export function useKeptFocus(root, restore) {
  const focused = document.activeElement;
  const isInside = focused !== root && root?.contains(focused);
  useLayoutEffect(() => {
    if (!isInside || document.activeElement !== document.body) return;
    const again = document.getElementById(focused.id);
    if (again) again.focus();
    else restore();
  });
}
