// Why an answer was not completed, in words; by the close code of the connection.

const LOSSES = {
  1009: "The message is too large for this server. Shorten it.",
  1012: "The server shut down before the answer was complete.",
  4499: "The server disconnected, because this page did not read the answer in time.",
};
const LOSS = "The connection to the server was lost before the answer was complete.";

/** A page was closed or reloaded, or its tab crashed, while it received an answer. */
export const INTERRUPTION =
  "The page was closed before the answer was complete, and the server ended it then. The rest was not received.";

/** The sentence for a close code of the connection. */
export const lossOf = (code) => LOSSES[code] ?? LOSS;
