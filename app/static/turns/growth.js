// Renders one component with each growth of an open answer, and the rest of the page not.

import { useLayoutEffect, useReducer } from "preact/hooks";

/** @param {import("../conversation/conversation.js").Conversation} conversation @param {boolean} isOpen whether the component shows an open answer */
export function useGrowth(conversation, isOpen) {
  const [, show] = useReducer((count) => count + 1, 0);
  useLayoutEffect(() => {
    if (!isOpen) return undefined;
    const watcher = () => show(undefined);
    conversation.watchers.add(watcher);
    return () => conversation.watchers.delete(watcher);
  }, [conversation, isOpen]);
}
