// Conversations as a JSON file, and back. An import is checked completely before anything is stored.

import { cleanSettings } from "../sampling/sampling.js";
import { isConversation, isMessage, toConversation, toMessage } from "../tree/records.js";

const FORMAT = "quire.conversations";
const VERSION = 1;
export const MAX_IMPORT_BYTES = 50 * 1024 * 1024;

/**
 * @typedef {import("../tree/record_types.js").Records} Records
 */

/** A file that cannot be imported; the message says why and what to do. */
export class ImportError extends Error {}

/** @param {Records} records @param {Date} date */
export function writeArchive({ conversations, messages }, date) {
  const all = conversations.map((conversation) => ({
    ...conversation,
    messages: messages.filter((message) => message.conversation === conversation.id).map(toMessage),
  }));
  return JSON.stringify({ format: FORMAT, version: VERSION, exportedAt: date.toISOString(), conversations: all }, null, 1);
}

/**
 * @param {string} text
 * @returns {Records}
 * @throws {ImportError}
 */
export function readArchive(text) {
  const archive = parse(text);
  if (archive?.format !== FORMAT || !Array.isArray(archive.conversations)) {
    throw new ImportError("The file has no conversations of Quire. Choose a file that this page has exported.");
  }
  if (archive.version !== VERSION) {
    const { version } = archive;
    throw new ImportError(
      `The file has version ${JSON.stringify(version)}; this page reads version ${VERSION}. Update the server, then import again.`,
    );
  }
  const parts = archive.conversations.map(readConversation);
  const ids = parts.map(({ conversation }) => conversation.id);
  if (new Set(ids).size < ids.length) throw new ImportError("Two conversations of the file have the same id. Nothing was imported.");
  return {
    conversations: parts.map(({ conversation }) => conversation),
    messages: parts.flatMap(({ messages }) => messages),
  };
}

function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    throw new ImportError("The file is not JSON, or is damaged. Choose a .json or .md file that this page has exported.");
  }
}

function readConversation(entry, index) {
  const damaged = (what) => new ImportError(`Conversation ${index + 1} of the file is damaged (${what}). Nothing was imported.`);
  if (!isConversation(entry)) throw damaged("its fields");
  if (!Array.isArray(entry.messages)) throw damaged("no list of messages");
  const wrong = entry.messages.findIndex((message) => !isMessage(message) || message.conversation !== entry.id);
  if (wrong >= 0) throw damaged(`message ${wrong + 1}`);
  const ids = new Set(entry.messages.map(({ id }) => id));
  if (ids.size < entry.messages.length) throw damaged("two messages with the same id");
  if (hasCycle(entry.messages)) throw damaged("messages that follow each other in a circle");
  const conversation = toConversation({ ...entry, settings: cleanSettings(entry.settings) });
  return { conversation, messages: entry.messages.map(ended) };
}

/** An answer that was exported while it was written has ended. */
function ended(entry) {
  const message = toMessage(entry);
  const isOpen = message.state === "waiting" || message.state === "streaming";
  return isOpen ? { ...message, state: "interrupted" } : message;
}

function hasCycle(messages) {
  const parents = new Map(messages.map(({ id, parent }) => [id, parent]));
  const ends = new Set();
  for (const { id } of messages) {
    const seen = new Set();
    let at = id;
    while (parents.has(at) && !ends.has(at)) {
      if (seen.has(at)) return true;
      seen.add(at);
      at = parents.get(at);
    }
    for (const each of seen) ends.add(each);
  }
  return false;
}
