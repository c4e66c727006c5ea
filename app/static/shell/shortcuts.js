// Keyboard shortcuts. shortcut_sheet.js lists them.

import { useEffect, useRef } from "preact/hooks";

/** @param {{stop: () => void, startNew: () => void, search: () => void, toggleList: () => void, help: () => void}} actions */
export function useShortcuts(actions) {
  const latest = useRef(actions);
  latest.current = actions;
  useEffect(() => {
    const onKeyDown = (event) => {
      const action = actionOf(event);
      if (!action || document.querySelector("dialog[open]")) return;
      if (action !== "stop") event.preventDefault();
      latest.current[action]();
    };
    addEventListener("keydown", onKeyDown);
    return () => removeEventListener("keydown", onKeyDown);
  }, []);
}

/** The name of an action, or null. @param {any} event of a key */
export function actionOf(event) {
  if (event.key === "Escape") return "stop";
  if (!event.ctrlKey && !event.metaKey) return null;
  // On some keyboards "/" needs Shift.
  if (event.shiftKey && event.key !== "/") return event.key.toLowerCase() === "o" ? "startNew" : null;
  return { k: "search", b: "toggleList", "/": "help" }[event.key.toLowerCase()] ?? null;
}
