// The open answers that no page writes any more, because the one that has begun them has ended.

import { canGoOn, hasFinished, isOpen } from "../tree/answer.js";
import { besideOf } from "../tree/beside.js";
import { kindOf, makeRequest } from "../tree/request.js";
import { INTERRUPTION } from "./losses.js";

/**
 * Those of a conversation, the answers to one request together, and whether another page can go on with them.
 * @param {import("../tree/tree.js").Tree} tree
 * @param {(id: string) => boolean} writes whether this page writes an answer
 * @param {(id: string, isFinal: boolean) => Promise<boolean>} isAbandoned see conversation.js
 * @returns {AsyncGenerator<{answers: any[], goOn: boolean}>}
 */
export async function* abandonedIn(tree, writes, isAbandoned) {
  for (const answer of tree.all.filter((message) => isOpen(message) && !writes(message.id))) {
    const answers = besideOf(tree, answer).filter(isOpen);
    // Without a position it would be asked for once more, or given up.
    if (answers[0] !== answer || !(await isAbandoned(answer.id, !answer.position)) || !isOpen(answer)) continue;
    yield { answers, goOn: canGoOn(answer, Date.now()) };
  }
}

/** The request that the other page has made for answers, as this one makes it. The settings may be others by now. */
export function requestAgain(tree, [{ parent }, ...others], settings) {
  const path = tree.path(parent);
  const { n: _n, ...request } = makeRequest(path, settings, kindOf(path));
  return others.length ? { ...request, n: others.length + 1 } : request;
}

/** How an answer has ended that nobody can go on with; of several at once some may be complete. */
export const endOfAbandoned = (answer) =>
  hasFinished(answer) ? { state: "done" } : { state: "interrupted", error: INTERRUPTION };
