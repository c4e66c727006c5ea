// Conversations with all their messages: read for an export, or to be deleted and put back.

import { takeEdits } from "./edits.js";
import { tabStorage } from "./web_storage.js";

/**
 * @typedef {import("../tree/record_types.js").Records} Records
 * @typedef {Records & {edits?: Map<string, string>}} Removed with what the user was writing in editors
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
 * @returns {Promise<Removed | undefined>} all that was deleted; undefined if nothing was
 */
export async function removeRecords(library, ids) {
  const removed = await readRecords(library, ids);
  if (!removed) return undefined;
  if (await library.remove(ids)) return { ...removed, edits: takeEdits(ids) };
  // Also what was not stored of them, and is forgotten now.
  restoreRecords(library, removed);
  return undefined;
}

/** Put deleted conversations back: what cannot be stored is kept, and tried again. @param {Library} library @param {Removed} removed */
export function restoreRecords(library, { conversations, messages, edits = new Map() }) {
  for (const [name, text] of edits) tabStorage.set(name, text);
  for (const record of conversations) library.save(record, messages.filter(({ conversation }) => conversation === record.id));
}
