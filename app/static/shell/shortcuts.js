// Keyboard shortcuts. shortcut_sheet.js lists them.

import { useLayoutEffect, useRef } from "preact/hooks";

// What takes text itself.
const FIELDS = 'input:not([type="checkbox"]), textarea, select';

/**
 * @param {{stop: () => void, startNew: () => void, search: () => void, toggleList: () => void, toggleLive: () => void, help: () => void,
 *   type: () => void}} actions
 */
export function useShortcuts(actions) {
  const latest = useRef(actions);
  latest.current = actions;
  // Not later: a page that is seen hears its keys.
  useLayoutEffect(() => {
    const onKeyDown = (event) => {
      const action = actionOf(event);
      if (!action || document.querySelector("dialog[open]")) return;
      // The browser writes what is typed or pasted into the field that has the focus by then.
      if (action !== "stop" && action !== "type") event.preventDefault();
      latest.current[action]();
    };
    addEventListener("keydown", onKeyDown);
    return () => removeEventListener("keydown", onKeyDown);
  }, []);
}

/** The name of an action, or null. @param {any} event of a key */
export function actionOf(event) {
  if (event.key === "Escape") return "stop";
  if (isText(event)) return event.target?.closest?.(FIELDS) ? null : "type";
  if (!event.ctrlKey && !event.metaKey) return null;
  // On some keyboards "/" needs Shift.
  if (event.shiftKey && event.key !== "/") return event.key.toLowerCase() === "o" ? "startNew" : null;
  return { k: "search", b: "toggleList", e: "toggleLive", "/": "help" }[event.key.toLowerCase()] ?? null;
}

/** Whether a key writes something, or pastes it. Space does not: it presses buttons, and scrolls. */
function isText(event) {
  const hasModifier = event.ctrlKey || event.metaKey || event.altKey;
  // AltGr counts as Ctrl + Alt on Windows.
  if (hasModifier && !event.getModifierState?.("AltGraph")) return !event.altKey && event.key.toLowerCase() === "v";
  return event.key !== " " && [...event.key].length === 1;
}
