// Which turns are left out when room is short, and how they are dropped.

import { cutInForce, isTyped } from "./cut.js";
import { turnsOf } from "./turns.js";
import { removeVain } from "./vain.js";

/**
 * Divide the turns of a branch after its newest cut: the newest ones that fit `room` together are kept, and at least the
 * oldest one is not.
 * @param {any[]} path
 * @param {number} room in the units of `costOf`
 * @param {(message: any) => number} costOf
 * @returns {{numTurns: number, from: number, end: number}} the number of turns that are left out; where the messages
 *   begin that are kept; and where the last answered turn ends, behind which nothing can be left out
 */
export function divide(path, room, costOf) {
  const cut = cutInForce(path);
  const answered = turnsOf(path).filter((turn) => turn.at >= (cut?.from ?? 0) && isAnswered(turn));
  const turns = answered.filter(({ at }) => !cut || at > cut.at);
  const end = turns.at(-1)?.end ?? 0;
  let from = end;
  let left = room;
  for (const { at } of turns.slice(1).reverse()) {
    left -= path.slice(at, from).reduce((sum, message) => sum + costOf(message), 0);
    if (left < 0) break;
    from = at;
  }
  // Those that the newest cut has kept are left out with the others.
  const numTurns = turns.length && answered.filter(({ at }) => at < from).length;
  return { numTurns, from, end };
}

/** Whether a question of the user has an answer, or calls of tools with results. */
const isAnswered = ({ question, messages }) =>
  question && isTyped(question) && messages.slice(1).some(({ text, results }) => text || results);

/**
 * Leave out the messages of the shown branch before index `from`, after the answer at index `at`.
 * @param {import("./tree.js").Tree} tree
 * @param {string | null} head the end of the branch
 * @param {{at: number, from: number}} where
 * @returns {{head: string | null, changed: any[], removed: string[]}}
 */
export function dropIn(tree, head, { at, from }) {
  const answer = tree.path(head)[at];
  const { changed, ...vain } = removeVain(tree, head);
  Object.assign(answer, { keeps: at + 1 - from, isUndone: false });
  return { ...vain, changed: [...changed, answer] };
}
