// What can go wrong with the browser's storage, in words: what has happened, and what to do.

/** @typedef {"absent" | "newer" | "full" | "replaced" | "failed"} ProblemKind */

/** @type {Record<ProblemKind, string>} */
export const PROBLEMS = {
  absent:
    "This browser stores nothing for this page, as in a private window. Conversations stay until the page is closed; " +
    "export what you want to keep.",
  newer:
    "The stored conversations belong to a newer version of this page, and are left as they are. Update the server, or " +
    "reload the page. Until then conversations stay only until the page is closed; export what you want to keep.",
  full:
    "The browser's storage for this page is full, so new messages are not stored. They stay until the page is closed. " +
    "Export conversations, then delete some.",
  replaced: "A newer version of this page is open in another tab. Reload this tab to store further messages.",
  failed:
    "The browser could not store the last messages. They stay until the page is closed, and are stored with the next " +
    "change if the browser allows it; export what you want to keep.",
};

/** A failure of the storage. */
export class StorageProblem extends Error {
  /** @param {ProblemKind} kind */
  constructor(kind, cause) {
    super(PROBLEMS[kind], { cause });
    this.kind = kind;
  }
}

/** The problem that an exception of IndexedDB means. */
export function problemOf(error) {
  if (error instanceof StorageProblem) return error;
  /** @type {Record<string, ProblemKind>} */
  const kinds = { QuotaExceededError: "full", VersionError: "newer", InvalidStateError: "replaced" };
  return new StorageProblem(kinds[error?.name] ?? "failed", error);
}

/** A sentence for records that could not be read. */
export const damagedText = (count) =>
  `${count === 1 ? "One stored record is" : `${count} stored records are`} damaged. They are left as they are, and not shown.`;
