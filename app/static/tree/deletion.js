// What is deleted with a message: its turn (turns.js), a question and all answers to it; what follows stays, and follows
// what was before it. Of an answer that has other versions, this version is deleted alone, with what follows it.
//
// Cuts (cut.js) count messages: they count on as if the deleted ones had never been.

import { isSummary } from "./cut.js";
import { isResultOf } from "./results.js";
import { turnsOf, versionsOf } from "./turns.js";

/** @typedef {import("./tree.js").Tree} Tree */
/**
 * What `restoreIn` needs: the ends of the shown branch before and after, and the fields that have changed.
 * @typedef {{from: string | null, to: string | null, messages: any[], before: any[]}} Deletion
 */

/**
 * The messages that are deleted with one.
 * @param {Tree} tree
 * @param {any} message
 * @returns {any[]}
 */
export function deletedWith(tree, message) {
  const { question, messages } = turnsOf(tree.path(message.id)).at(-1);
  if (!question) return [message];
  const version = messages.slice(1).findLast((each) => versionsOf(tree, each).length > 1);
  return version ? subtree(tree, version) : turnOf(tree, question);
}

/** A question and its answers, with the results of the tools that they call, and the answers to these. */
function turnOf(tree, question) {
  const found = [question];
  for (const each of found) {
    const isPart = (child) => child.role === "assistant" || isResultOf(child, each);
    found.push(...tree.childrenOf(each.id).filter(isPart));
  }
  return found;
}

function subtree(tree, message) {
  const found = [message];
  for (const each of found) found.push(...tree.childrenOf(each.id));
  return found;
}

/**
 * Delete messages, see `deletedWith`.
 * @param {Tree} tree
 * @param {string | null} head the end of the branch that is shown
 * @param {any[]} messages
 * @returns {{head: string | null, changed: any[], removed: string[], deletion: Deletion}}
 */
export function deleteFrom(tree, head, messages) {
  const deleted = new Set(messages);
  const cuts = cutChanges(tree, deleted, head);
  const moved = messages.flatMap(({ id }) => tree.childrenOf(id)).filter((child) => !deleted.has(child));
  const changed = [...new Set([...cuts.keys(), ...moved])];
  const before = changed.map(({ id, parent, keeps, isUndone }) => ({ id, parent, keeps, isUndone }));
  // Answers before their questions: the deleted ones keep their parents.
  for (const { id } of [...messages].reverse()) tree.remove(id);
  for (const [message, fields] of cuts) Object.assign(message, fields);
  const parent = tree.get(messages[0].parent);
  const end = tree.get(head) ?? (parent ? tree.leaf(parent) : tree.newestLeaf());
  const to = end?.id ?? null;
  return { head: to, changed, removed: messages.map(({ id }) => id), deletion: { from: head, to, messages, before } };
}

/**
 * Put back what was deleted. If the shown branch is another one by now, it stays.
 * @param {Tree} tree
 * @param {string | null} head
 * @param {Deletion} deletion
 * @returns {{head: string | null, changed: any[], removed: string[]}}
 */
export function restoreIn(tree, head, { from, to, messages, before }) {
  const changed = before.filter(({ id }) => tree.get(id)).map((fields) => Object.assign(tree.get(fields.id), fields));
  tree.add(messages);
  return { head: head === to && tree.get(from) ? from : head, changed: [...messages, ...changed], removed: [] };
}

/** The cuts that change, and their new fields. @returns {Map<any, {keeps: number, isUndone?: boolean}>} */
function cutChanges(tree, deleted, head) {
  const changes = new Map();
  for (const message of tree.all.filter((each) => each.keeps && !deleted.has(each))) {
    const numDeleted = tree.path(message.id).slice(-message.keeps).filter((each) => deleted.has(each)).length;
    if (numDeleted) changes.set(message, { keeps: message.keeps - numDeleted });
  }
  // A deleted answer that dropped the older messages leaves that to the answer before its question.
  const path = tree.path(head);
  const at = path.findLastIndex((each) => deleted.has(each) && each.keeps !== undefined && !each.isUndone);
  const turn = at >= 0 && !isSummary(path[at]) && turnsOf(path).find(({ end }) => end > at);
  const heir = turn && deleted.has(turn.question) && path[turn.at - 1];
  if (heir) changes.set(heir, { keeps: Math.max(0, path[at].keeps - (at + 1 - turn.at)), isUndone: false });
  return changes;
}
