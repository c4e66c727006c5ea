// Which turns, questions with their answers, are left out when room is short.

import { cutInForce, isTyped } from "./cut.js";

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
  const start = cut ? cut.at + 1 : 0;
  const isAnswered = (at) => path[at + 1]?.text || path[at + 2]?.results;
  const asked = [...path.keys()].filter(
    (at) => at >= (cut?.from ?? 0) && path[at].role === "user" && isTyped(path[at]) && isAnswered(at),
  );
  const questions = asked.filter((at) => at >= start);
  const end = questions.length ? endOf(path, questions.at(-1)) : 0;
  let from = end;
  let left = room;
  for (const at of questions.slice(1).reverse()) {
    left -= path.slice(at, from).reduce((sum, message) => sum + costOf(message), 0);
    if (left < 0) break;
    from = at;
  }
  // Those that the newest cut has kept are left out with the others.
  const numTurns = questions.length && asked.filter((at) => at < from).length;
  return { numTurns, from, end };
}

/** Where the turn ends that begins at an index: calls of tools and their results are parts of it. */
function endOf(path, start) {
  const next = path.findIndex(({ role, results }, at) => at > start && role === "user" && !results);
  return next < 0 ? path.length : next;
}
