// Conversations with all their messages: read for an export, or to be deleted and put back.

/**
 * @typedef {import("./record_types.js").Records} Records
 * @typedef {import("./library.js").Library} Library
 */

/**
 * @param {Library} library
 * @param {string[]} ids of conversations
 * @returns {Promise<Records | undefined>} undefined if they cannot be read; the library's problem says why
 */
export async function readRecords(library, ids) {
  const conversations = ids.map((id) => library.get(id)).filter(Boolean);
  const messages = await Promise.all(conversations.map(({ id }) => library.messages(id)));
  return messages.includes(undefined) ? undefined : { conversations, messages: messages.flat() };
}

/**
 * Delete conversations; what cannot be read is not deleted.
 * @param {Library} library
 * @param {string[]} ids
 * @returns {Promise<Records | undefined>} all that was deleted; undefined if nothing was
 */
export async function removeRecords(library, ids) {
  const removed = await readRecords(library, ids);
  if (!removed) return undefined;
  if (await library.remove(ids)) return removed;
  // Also what was not stored of them, and is forgotten now.
  restoreRecords(library, removed);
  return undefined;
}

/** Put deleted conversations back: what cannot be stored is kept, and tried again. @param {Library} library @param {Records} records */
export function restoreRecords(library, { conversations, messages }) {
  for (const record of conversations) library.save(record, messages.filter(({ conversation }) => conversation === record.id));
}
