// Deletes a turn of the shown conversation, or one version of an answer, and offers to put it back.

import { makeListActions } from "../list/list_actions.js";
import { isOpen } from "../tree/answer.js";
import { isSummary } from "../tree/cut.js";
import { deleteFrom, deletedWith, restoreIn } from "../tree/deletion.js";
import { Tree } from "../tree/tree.js";

/**
 * @param {{desk: any, library: any, say: (text: string, action?: string, run?: () => void) => void}} page
 * @param {any} message of the shown conversation
 */
export function deleteMessage({ desk, library, say }, message) {
  const conversation = desk.current;
  if (message.conversation !== conversation.id) return;
  const messages = deletedWith(new Tree(conversation.all), message);
  if (messages.some((each) => isOpen(each) && !conversation.writes(each.id))) {
    return say("Nothing was deleted: another tab is writing the answer. Delete it when it is complete.");
  }
  if (messages.length === conversation.all.length) return deleteConversation({ desk, library, say }, conversation);
  if (messages.some(({ id }) => conversation.writes(id))) conversation.stop();
  const { deletion } = conversation.change((tree, head) => deleteFrom(tree, head, messages));
  const undo = async () => {
    await desk.open(conversation.id);
    // It may have been deleted meanwhile.
    if (desk.current.id === conversation.id) desk.current.change((tree, head) => restoreIn(tree, head, deletion));
  };
  say(wordsOf(messages), "Undo", undo);
}

/**
 * A conversation without messages is none: it is deleted, and a new one has its settings and its draft until it is put back.
 */
function deleteConversation({ desk, library, say }, conversation) {
  const { id } = conversation;
  conversation.stop();
  conversation.draft.unqueue();
  conversation.keep();
  const sayDeleted = (text, action, restore) => {
    if (!restore) return say(text);
    // Another conversation may have been opened meanwhile.
    const giveUp = desk.current.isEmpty ? desk.startLike(conversation) : () => {};
    const undo = async () => {
      restore();
      giveUp();
      await desk.open(id);
    };
    return say(text, action, undo);
  };
  return makeListActions(library, sayDeleted).remove([id]);
}

/** @param {any[]} messages a turn, or a version of a part of one with what follows it */
function wordsOf(messages) {
  const [first] = messages;
  if (isSummary(first)) return "The summary was deleted.";
  if (first.role === "assistant" || first.results) {
    const hasMore = messages.slice(1).some(({ role, results }) => role === "user" && !results);
    return hasMore ? "The answer was deleted, with all that followed it." : "The answer was deleted; its other versions stay.";
  }
  // Calls of tools that have results are a part of the answer.
  const isEnd = ({ id }) => !messages.some(({ parent, results }) => results && parent === id);
  const count = messages.filter((message) => message.role === "assistant" && isEnd(message)).length;
  if (!count) return "The question was deleted.";
  return count === 1 ? "The question and its answer were deleted." : `The question and its ${count} answers were deleted.`;
}
