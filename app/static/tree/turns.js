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

/**
 * The place of a message among the branches beside it, from 1, and whether it is an answer with the text of the one before.
 * @param {import("./tree.js").Tree} tree
 * @param {any} message
 * @returns {{number: number, count: number, isRepeated?: boolean}}
 */
export function branchOf(tree, message) {
  const siblings = tree.siblings(message);
  const at = siblings.indexOf(message);
  const before = siblings[at - 1];
  const isAnswer = message.role === "assistant" && before?.role === "assistant" && message.state === "done" && !message.isEdited;
  const isRepeated = isAnswer && message.text !== "" && message.text === before.text;
  return { number: at + 1, count: siblings.length, ...(isRepeated && { isRepeated }) };
}

/** The versions of a part of a turn: other answers to its question, or other results of the same calls; among them itself. */
export const versionsOf = (tree, message) =>
  tree.siblings(message).filter(({ role, results }) => role === message.role && !results === !message.results);
