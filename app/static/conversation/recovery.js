// Stores what a page that has ended had not stored. Another tab, or this page before it ended, may have stored newer
// records since.

import { isOpen } from "../tree/answer.js";

/**
 * @param {{problem?: string, get: (id: string) => any, messages: (id: string) => Promise<any[] | undefined>,
 *   save: (conversation: any, messages: any[], removed: string[]) => void}} library
 * @param {{conversations: any[], messages: any[], removed: string[], changed?: string[], listed?: Record<string, any>}} unstored see
 *   library.js
 */
export async function recover(library, { conversations, messages, removed, changed = [], listed = {} }) {
  for (const conversation of conversations) {
    const { id } = conversation;
    // It was deleted, unless the list could not be read.
    if (changed.includes(id) && !library.problem && !library.get(id)) continue;
    const stored = new Map(((await library.messages(id)) ?? []).map((message) => [message.id, message]));
    const newer = messages.filter((message) => message.conversation === id && !isOlder(message, stored.get(message.id)));
    library.save({ ...conversation, ...newerFields(conversation, library.get(id)), ...listed[id] }, newer, removed);
  }
}

/** Whether the stored message is further than an unstored one. */
function isOlder(message, stored) {
  if (!stored) return false;
  if (isOpen(message) !== isOpen(stored)) return isOpen(message);
  return message.text.length < stored.text.length;
}

/** The fields of the stored conversation that are not replaced: those of the list that the user has not changed, and all after a later question. */
function newerFields({ updatedAt, draft, files, queued }, stored) {
  if (!stored) return {};
  const { title, titleFrom, isPinned } = stored;
  if (stored.updatedAt <= updatedAt) return { title, titleFrom, isPinned };
  return stored.draft || stored.files?.length ? stored : { ...stored, draft, files, queued };
}
