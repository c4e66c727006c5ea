// Deletes a turn of the shown conversation, or one version of an answer, and offers to put it back.

import { isOpen } from "../conversation/answer.js";
import { isSummary } from "../conversation/cut.js";
import { deleteFrom, deletedWith, restoreIn } from "../conversation/deletion.js";
import { Tree } from "../conversation/tree.js";
import { makeListActions } from "./list_actions.js";

/**
 * @param {{desk: any, library: any, say: (text: string, action?: string, run?: () => void) => void}} page
 * @param {any} message of the shown conversation
 */
export function deleteMessage({ desk, library, say }, message) {
  const conversation = desk.current;
  if (message.conversation !== conversation.id) return;
  const messages = deletedWith(new Tree(conversation.all), message);
  if (messages.some((each) => isOpen(each) && each !== conversation.open)) {
    return say("Nothing was deleted: another tab is writing the answer. Delete it when it is complete.");
  }
  // A conversation without messages is none.
  if (messages.length === conversation.all.length) return makeListActions(library, say).remove([conversation.id]);
  if (messages.includes(conversation.open)) conversation.stop();
  const { deletion } = conversation.change((tree, head) => deleteFrom(tree, head, messages));
  const undo = async () => {
    await desk.open(conversation.id);
    // It may have been deleted meanwhile.
    if (desk.current.id === conversation.id) desk.current.change((tree, head) => restoreIn(tree, head, deletion));
  };
  say(wordsOf(messages), "Undo", undo);
}

/** @param {any[]} messages */
function wordsOf(messages) {
  const [first] = messages;
  const count = messages.length - 1;
  if (isSummary(first)) return "The summary was deleted.";
  if (first.role === "assistant") {
    return count ? "The answer was deleted, with all that followed it." : "The answer was deleted; its other versions stay.";
  }
  if (!count) return "The question was deleted.";
  return count === 1 ? "The question and its answer were deleted." : `The question and its ${count} answers were deleted.`;
}
