// Which answers the pages of this browser have begun and not ended, by what outlives them all: an answer goes on also if no
// page shows its conversation.

import { browserStorage } from "../store/web_storage.js";

const PREFIX = "quire.open.";

/** Note that an answer goes on without this page. */
export const noteBegun = ({ id, conversation }) => browserStorage.set(PREFIX + id, conversation);

/** Note that an answer has ended. */
export const noteEnded = ({ id }) => browserStorage.remove(PREFIX + id);

/** The answers that have not ended. @returns {{id: string, conversation: string}[]} */
export const begunAnswers = () =>
  browserStorage.names
    .filter((name) => name.startsWith(PREFIX))
    .map((name) => ({ id: name.slice(PREFIX.length), conversation: browserStorage.get(name) ?? "" }));
