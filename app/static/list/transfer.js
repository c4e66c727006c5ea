// Exports and imports of conversations as files of the user.

import { ImportError, MAX_IMPORT_BYTES, readArchive, writeArchive } from "../store/archive.js";
import { addImported } from "../store/copies.js";
import { readMarkdown, writeMarkdown } from "../store/markdown_archive.js";
import { Tree } from "../tree/tree.js";

/** Offer conversations as a JSON file. @param {import("../tree/record_types.js").Records} records */
export function saveJson(records) {
  saveFile(writeArchive(records, new Date()), `${fileName(records)}.json`, "application/json");
}

/** Offer the newest branches of conversations as a Markdown file. */
export function saveMarkdown(records) {
  const { conversations, messages } = records;
  const parts = conversations.map(({ id, title, head }) => {
    const tree = new Tree(messages.filter((message) => message.conversation === id));
    return { title, path: tree.path(tree.get(head) ? head : tree.newestLeaf()?.id) };
  });
  saveFile(writeMarkdown(parts), `${fileName(records)}.md`, "text/markdown");
}

/**
 * Let the user choose a file, and add its conversations, all or none.
 * @param {import("../store/library.js").Library} library
 * @param {(text: string) => void} say
 */
export function importFile(library, say) {
  const input = document.createElement("input");
  input.type = "file";
  input.accept = ".json,.md,application/json,text/markdown";
  input.addEventListener("change", async () => say(await importOne(library, input.files[0])));
  input.click();
}

async function importOne(library, file) {
  try {
    if (file.size > MAX_IMPORT_BYTES) {
      const megabytes = Math.round(file.size / 2 ** 20);
      throw new ImportError(`The file has ${megabytes} MB; at most 50 MB are imported at once. Export fewer conversations.`);
    }
    const text = await file.text();
    const records = file.name.endsWith(".md") ? readMarkdown(text, Date.now()) : readArchive(text);
    return wordsOf(await addImported(library, records));
  } catch (error) {
    return error instanceof ImportError ? error.message : `Nothing was imported. ${error.message}`;
  }
}

/** What an import has done. */
function wordsOf({ numAdded, numCopies, numKnown }) {
  const added = `${numAdded === 1 ? "One conversation was" : `${numAdded || "No"} conversations were`} imported.`;
  const copies = numCopies ? ` ${numCopies} existed already and were added as copies.` : "";
  const known = numKnown ? ` ${numKnown} ${numKnown === 1 ? "is" : "are"} here already, with the same messages.` : "";
  return added + copies + known;
}

function fileName({ conversations }) {
  if (conversations.length !== 1) return `quire-${new Date().toISOString().slice(0, 10)}`;
  const words = conversations[0].title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "");
  return [...words].slice(0, 60).join("") || "quire";
}

function saveFile(text, name, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
