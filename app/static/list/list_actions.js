// What the user can do with conversations of the list.

import { readRecords, removeRecords, restoreRecords } from "../store/removal.js";
import { importFile, saveJson, saveMarkdown } from "./transfer.js";

/**
 * @param {import("../store/library.js").Library} library
 * @param {(text: string, action?: string, run?: () => void) => void} say shows a sentence, with an action
 * @param {{shown: () => string, open: (id: string) => void, stop: (ids: string[]) => void}} [page] the conversation that is shown is
 *   shown again when it is put back; `stop` ends the answers of conversations
 */
export function makeListActions(library, say, page = undefined) {
  // Where they cannot be read, the list says why.
  const withRecords = async (ids, save) => {
    const records = await readRecords(library, ids);
    if (records) save(records);
  };
  return {
    rename: (id, title) => library.update(id, { title, titleFrom: "user" }),
    pin: (id, isPinned) => library.update(id, { isPinned }),
    async remove(ids) {
      const shown = page?.shown();
      page?.stop(ids);
      const removed = await removeRecords(library, ids);
      if (!removed) return say("Nothing was deleted: the browser's storage has failed. Try again, or reload the page.");
      const count = removed.conversations.length;
      const text = count === 1 ? `“${removed.conversations[0].title}” was deleted.` : `${count} conversations were deleted.`;
      return say(text, "Undo", () => {
        restoreRecords(library, removed);
        if (ids.includes(shown)) page.open(shown);
      });
    },
    exportJson: (ids) => withRecords(ids, saveJson),
    exportMarkdown: (ids) => withRecords(ids, saveMarkdown),
    import: () => importFile(library, say),
  };
}
