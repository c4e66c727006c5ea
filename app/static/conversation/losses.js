// Why an answer was not completed, in words.

const CLOSE_TOO_LARGE = 1009;
const CLOSE_RESTART = 1012;
const CLOSE_SLOW = 4499;
const LOSSES = {
  [CLOSE_TOO_LARGE]: "The message is too large for this server. Shorten it.",
  [CLOSE_RESTART]: "The server shut down before the answer was complete.",
  [CLOSE_SLOW]: "The server disconnected, because this page did not read the answer in time.",
};
const LOSS = "The connection to the server was lost before the answer was complete.";

/** A page was closed or reloaded, or its tab crashed, while it received an answer. */
export const INTERRUPTION =
  "The page was closed before the answer was complete, and the server ended it then. The rest was not received.";

/** The sentence for a close code of the connection. */
export const lossOf = (code) => LOSSES[code] ?? LOSS;
