// A cut of a branch: from it on, the older messages are not sent to the model; they stay stored and shown. It is a message
// with `keeps`, the number of messages that end with it and are still sent. An answer with `keeps` drops the older
// messages; a question with `keeps` asks for a summary of them, which is sent in their place. A cut that is undone has
// `isUndone`.

import { turnsOf } from "./turns.js";

/** Whether a message asks for a summary. */
export const isSummary = (message) => message?.role === "user" && message.keeps !== undefined;

/** Whether a question was written in the field, which may get it back. */
export const isTyped = (question) => !isSummary(question) && !question?.results;

/**
 * The cuts of a branch, oldest first: the message, its index, and the index where the messages begin that are sent.
 * A question without a complete summary cuts nothing.
 * @param {any[]} path
 * @returns {{message: any, at: number, from: number}[]}
 */
export function cutsOf(path) {
  return path.flatMap((message, at) => {
    if (message.keeps === undefined) return [];
    const isMade = !isSummary(message) || (path[at + 1]?.state === "done" && path[at + 1].text);
    return isMade ? [{ message, at, from: Math.max(0, at + 1 - message.keeps) }] : [];
  });
}

/** The newest cut of a branch that is not undone, or undefined. */
export const cutInForce = (path) => cutsOf(path).findLast(({ message }) => !message.isUndone);

/** The messages of a branch that are sent for an answer to its end. @param {any[]} path */
export function sentOf(path) {
  const { message, at, from } = cutInForce(path) ?? { at: 0, from: 0 };
  const turns = turnsOf(path);
  const others = turns.filter(({ question }) => !isSummary(question));
  const kept = others.flatMap((turn) => path.slice(Math.max(turn.at, from), turn.end));
  return isSummary(message) ? [...turns.find((turn) => turn.at === at).messages, ...kept] : kept;
}

/** The messages that are sent for a summary, of which the last turn of a branch has the question. @param {any[]} path */
export function summarizedOf(path) {
  const { at, question, messages } = turnsOf(path).at(-1);
  return [...sentOf(path.slice(0, Math.max(0, at + 1 - question.keeps))), ...messages];
}
