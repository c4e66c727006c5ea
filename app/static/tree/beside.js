// Answers that were asked for at once, as choices of one request. They are versions of one answer, and are shown beside each
// other, by their field `beside`, until the user goes on with one of them or asks for something else.

import { isBlank } from "./answer.js";

/** The answers of one request, among them `message`, in the order of their choices; it alone if there are no others. */
export function besideOf(tree, message) {
  const { beside } = message;
  if (!beside) return [message];
  const all = tree.siblings(message).filter((each) => each.beside?.lead === beside.lead);
  return all.sort((one, other) => one.beside.number - other.beside.number);
}

/**
 * Show the versions of an answer beside each other no longer.
 * @param {any[]} versions
 * @returns {any[]} those that have changed
 */
export function part(versions) {
  const changed = versions.filter(({ beside }) => beside);
  for (const each of changed) Object.assign(each, { beside: undefined, version: each.version + 1 });
  return changed;
}

/** What is no longer shown beside another because a message was added: other versions of it, and of what it follows. */
export function partFor(tree, added) {
  const before = tree.get(added.parent);
  const versions = [...tree.siblings(added), ...(before ? tree.siblings(before) : [])];
  return part(versions.filter((each) => each !== added && (!added.beside || each.beside?.lead !== added.beside.lead)));
}

/**
 * Leave one of the answers to a request that have ended, if all came to nothing.
 * @param {import("./tree.js").Tree} tree
 * @param {string | null} head the end of the branch that is shown
 * @param {any[]} answers
 * @returns {{head: string | null, changed: any[], removed: string[]}}
 */
export function leaveOne(tree, head, answers) {
  const [first, ...others] = answers;
  if (!others.length || !answers.every(isBlank)) return { head, changed: answers, removed: [] };
  for (const { id } of others) tree.remove(id);
  part(answers);
  const removed = others.map(({ id }) => id);
  return { head: removed.includes(head) ? first.id : head, changed: [first], removed };
}

/** Where the rest of answers begins that are written at once, if the server keeps it. @returns {any} */
export function positionOf(answers) {
  const stream = answers[0]?.position?.stream;
  return stream && { stream, after: answers.map(({ position }) => position?.after[0] ?? 0) };
}
