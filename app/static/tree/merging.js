// How a tree takes over what another tab has stored.

import { refresh } from "./answer.js";

/**
 * @param {import("./tree.js").Tree} tree
 * @param {any[]} stored messages
 * @param {{isGone: (message: any) => boolean, isOwn: (message: any) => boolean}} which whether a message that is not stored
 *   was removed, and whether one is further here than any stored one
 */
export function mergeInto(tree, stored, { isGone, isOwn }) {
  const ids = new Set(stored.map(({ id }) => id));
  for (const message of tree.all.filter((each) => !ids.has(each.id) && isGone(each))) tree.remove(message.id);
  const known = stored.filter(({ id }) => tree.get(id));
  for (const message of known) if (!isOwn(message)) refresh(tree.get(message.id), message);
  tree.add(stored.filter(({ id }) => !tree.get(id)).map((message) => ({ ...message, version: 0 })));
}
