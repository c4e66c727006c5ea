// The turns of a branch: a question and all that answers it, with the calls of tools and their results. What belongs to a
// question is decided here alone.

import { isResultOf } from "./results.js";

/**
 * `at` is the index of its first message, `end` the one behind its last. Answers whose question is missing (a damaged
 * record) have none.
 * @typedef {{at: number, end: number, question: any, messages: any[]}} Turn
 */

/**
 * The turns of a branch, oldest first: all of its messages.
 * @param {any[]} path
 * @returns {Turn[]}
 */
export function turnsOf(path) {
  const begins = [...path.keys()].filter((at) => at === 0 || isQuestion(path[at], path[at - 1]));
  return begins.map((at, index) => {
    const end = begins[index + 1] ?? path.length;
    return { at, end, question: isQuestion(path[at]) ? path[at] : undefined, messages: path.slice(at, end) };
  });
}

/** Results without the calls before them are a question. */
const isQuestion = (message, before = undefined) => message.role === "user" && !isResultOf(message, before);

/** The versions of a part of a turn: other answers to its question, or other results of the same calls; among them itself. */
export const versionsOf = (tree, message) =>
  tree.siblings(message).filter(({ role, results }) => role === message.role && !results === !message.results);
