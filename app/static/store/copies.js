// Imported conversations; those that exist already get new ids.

import { newId } from "../tree/records.js";

/** @typedef {import("../tree/record_types.js").Records} Records */

/**
 * Add imported conversations, all or none; those whose id exists are added as copies.
 * @param {import("./library.js").Library} library
 * @param {Records} records
 * @returns {Promise<number>} the number of copies
 * @throws {Error} nothing was stored; the message says why
 */
export async function addImported(library, records) {
  const stored = await library.messages();
  if (!stored) throw new Error(library.problem);
  const { numCopies, ...made } = renamed(records, new Set(library.list.map(({ id }) => id)), new Set(stored.map(({ id }) => id)));
  await library.add(made);
  return numCopies;
}

/**
 * The records, with new ids where a conversation or one of its messages has an id that exists.
 * @param {Records} records
 * @param {{has: (id: string) => boolean}} conversationIds
 * @param {{has: (id: string) => boolean}} messageIds
 */
export function renamed({ conversations, messages }, conversationIds, messageIds) {
  const exists = ({ id }) =>
    conversationIds.has(id) || messages.some((message) => message.conversation === id && messageIds.has(message.id));
  const copied = new Set(conversations.filter(exists).map(({ id }) => id));
  const ids = new Map();
  const rename = (id) => {
    if (!ids.has(id)) ids.set(id, newId());
    return ids.get(id);
  };
  const renameIf = (isCopied, id) => (isCopied && id ? rename(id) : id);
  return {
    numCopies: copied.size,
    conversations: conversations.map((record) => ({
      ...record,
      id: renameIf(copied.has(record.id), record.id),
      head: renameIf(copied.has(record.id), record.head),
    })),
    messages: messages.map((record) => {
      const isCopied = copied.has(record.conversation);
      return {
        ...record,
        id: renameIf(isCopied, record.id),
        conversation: renameIf(isCopied, record.conversation),
        parent: renameIf(isCopied, record.parent),
      };
    }),
  };
}
