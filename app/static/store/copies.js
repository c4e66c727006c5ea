// Imported conversations; those whose ids exist already get new ones, and those that are here just as they are in the file
// are left out.

import { newId, toMessage } from "../tree/records.js";

/** @typedef {import("../tree/record_types.js").Records} Records */

/**
 * Add imported conversations, all or none; those whose id exists are added as copies, unless all their messages exist.
 * @param {import("./library.js").Library} library
 * @param {Records} records
 * @returns {Promise<{numAdded: number, numCopies: number, numKnown: number}>} how many were added, how many of them as copies,
 *   and how many were left out
 * @throws {Error} nothing was stored; the message says why
 */
export async function addImported(library, records) {
  const stored = await library.messages();
  if (!stored) throw new Error(library.problem);
  const { numKnown, ...others } = unknownOf(records, library.list, stored);
  const { numCopies, ...made } = renamed(others, new Set(library.list.map(({ id }) => id)), new Set(stored.map(({ id }) => id)));
  if (made.conversations.length) await library.add(made);
  return { numAdded: made.conversations.length, numCopies, numKnown };
}

/** The records without the conversations that are stored with the same messages, whatever their titles and settings are now. */
function unknownOf({ conversations, messages }, list, stored) {
  const [given, kept] = [messages, stored].map((all) => Map.groupBy(all, ({ conversation }) => conversation));
  const linesOf = (all) => (all ?? []).map((each) => JSON.stringify(toMessage(each))).sort().join();
  const ids = new Set(list.map(({ id }) => id));
  const isKnown = ({ id }) => ids.has(id) && linesOf(given.get(id)) === linesOf(kept.get(id));
  const known = new Set(conversations.filter(isKnown).map(({ id }) => id));
  return {
    numKnown: known.size,
    conversations: conversations.filter(({ id }) => !known.has(id)),
    messages: messages.filter(({ conversation }) => !known.has(conversation)),
  };
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
