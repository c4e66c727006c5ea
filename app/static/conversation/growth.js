// Renders one component with each growth of an open answer, and the rest of the page not.

import { useLayoutEffect, useReducer } from "preact/hooks";

/** @param {import("./conversation.js").Conversation} conversation @param {boolean} isOpen whether the component shows an open answer */
export function useGrowth(conversation, isOpen) {
  const [, show] = useReducer((count) => count + 1, 0);
  useLayoutEffect(() => (isOpen ? conversation.watch(() => show(undefined)) : undefined), [conversation, isOpen]);
}
