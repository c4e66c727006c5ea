// Why an answer was not completed, in words; and after which close codes of the connection it goes on by itself.

const LOSSES = {
  1009: "The message is too large for this server. Shorten it.",
  1012: "The server shut down before the answer was complete.",
  4499: "The server disconnected, because this page did not read the answer in time.",
};
const LOSS = "The connection to the server was lost before the answer was complete.";
// The page does not connect again.
const LAST = [4400, 4406];
// What was sent would end the next connection, too: frames that are no text, not UTF-8, too many bad ones, too large, or
// with an id that is in use.
const FAULTS = [1003, 1007, 1008, 1009, 4409];
// A question that ends every connection is not sent for ever.
const MAX_SENT = 3;

/** A page was closed or reloaded, or its tab crashed, while it received an answer that the server did not keep. */
export const INTERRUPTION = "The page was closed before the answer was complete. The rest was not received.";

/** The server does not know the stream that this page comes back to, or not so far. */
export const FORGOTTEN =
  "The server no longer has the rest of this answer: it was started again, nobody read the answer for too long, or the API " +
  "key is another one. A server with the option --journal FILE keeps answers when it is started again.";

/** The sentence for a close code of the connection. */
export const lossOf = (code) => LOSSES[code] ?? LOSS;

/** Whether there is no further connection after this close code. */
export const isLast = (code) => LAST.includes(code);

/**
 * Whether an answer goes on with the next connection: the server keeps it, or has not accepted it yet.
 * @param {{position?: object, numSent?: number, stream: {isAccepted: boolean}}} answer
 * @param {number} code
 */
export function goesOn({ position, numSent = 0, stream }, code) {
  if (isLast(code)) return false;
  return Boolean(position) || (!stream.isAccepted && !FAULTS.includes(code) && numSent < MAX_SENT);
}
