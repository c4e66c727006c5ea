// A cut of a branch: from it on, the older messages are not sent to the model; they stay stored and shown. It is a message
// with `keeps`, the number of messages that end with it and are still sent. An answer with `keeps` drops the older
// messages; a question with `keeps` asks for a summary of them, which is sent in their place. A cut that is undone has
// `isUndone`.

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

/**
 * The messages that are sent for the end of a branch. If this is a summary's question, or its answer to be continued,
 * they are the messages that are summarized, and these two.
 * @param {any[]} path
 */
export function sentOf(path) {
  const asks = path.findLastIndex(isSummary);
  if (asks < 0 || asks < path.length - 2) return current(path);
  return [...current(path.slice(0, Math.max(0, asks + 1 - path[asks].keeps))), ...path.slice(asks)];
}

function current(path) {
  const { message, at, from } = cutInForce(path) ?? { at: 0, from: 0 };
  const kept = path.slice(from).filter((each, index, all) => !isSummary(each) && !isSummary(all[index - 1]));
  return isSummary(message) ? [...path.slice(at, at + 2), ...kept] : kept;
}
