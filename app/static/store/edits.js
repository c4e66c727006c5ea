// What the user writes in the editors of messages, until it is saved or cancelled. It stays in the tab.

import { tabStorage } from "./web_storage.js";

/** Its name in the tab's storage. @param {{conversation: string, id: string}} message */
export const editName = ({ conversation, id }) => `quire.edit.${conversation}.${id}`;

/** The id of the last message with an edit that was neither saved nor cancelled, or null. @param {any[]} messages */
export const editedIn = (messages) => messages.findLast((message) => tabStorage.get(editName(message)) !== null)?.id ?? null;

/** Remove what was written in conversations, and return it: the text of each name. @param {string[]} conversations */
export function takeEdits(conversations) {
  const prefixes = conversations.map((conversation) => editName({ conversation, id: "" }));
  const names = tabStorage.names.filter((name) => prefixes.some((prefix) => name.startsWith(prefix)));
  const edits = new Map(names.map((name) => [name, tabStorage.get(name)]));
  for (const name of names) tabStorage.remove(name);
  return edits;
}
