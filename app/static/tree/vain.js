// What came to nothing is removed with what the user does next: failed answers whose questions are back in the draft, and
// summaries that were not completed; with their questions, unless these have other answers.

import { isOpen } from "./answer.js";
import { isSummary } from "./cut.js";

/**
 * @param {import("./tree.js").Tree} tree
 * @param {string | null} head the end of the branch that is shown
 * @returns {{head: string | null, changed: any[], removed: string[]}} the new end; messages with another parent; ids
 */
export function removeVain(tree, head) {
  const removed = [];
  const changed = [];
  let end = head;
  for (const answer of tree.all.filter((message) => message.isReturned || isVainSummary(tree, message))) {
    const { id, parent } = answer;
    if (end === id) end = tree.get(parent)?.parent ?? null;
    const isOnly = tree.siblings(answer).length === 1;
    if (!isOnly && tree.childrenOf(id).length) continue;
    for (const each of isOnly ? [id, parent] : [id]) {
      changed.push(...tree.remove(each));
      removed.push(each);
    }
  }
  return { head: end, removed, changed: changed.filter(({ id }) => tree.get(id)) };
}

const isVainSummary = (tree, message) =>
  isSummary(tree.get(message.parent)) && message.state !== "done" && !isOpen(message);
