// An answer: waiting -> streaming -> done | stopped | failed | disconnected | interrupted; the last five are final.
// Without a connection an open answer has no stream: its request is sent on the next connection, or the server is asked for
// what follows its `position`.
// `version` grows with each change. Besides the stored fields, an answer that this page writes has a watch, a stream
// and, if this page has begun it, a request.

import { Stopwatch } from "./figures.js";
import { withTokens } from "./probabilities.js";
import { newId, toMessage } from "./records.js";

export const isOpen = (message) => message?.state === "waiting" || message?.state === "streaming";
export const hasFailed = (message) => ["failed", "disconnected", "interrupted"].includes(message?.state);
export const isBlank = ({ text, reasoning, tools }) => !text && !reasoning && !tools?.length;

// A server forgets by then what nobody has read; and who has asked does not wait any more.
const KEPT_MS = 300_000;

/**
 * Whether another page can go on with an open answer: the server keeps it, or the page may have ended before it had accepted
 * the request, which can be sent again with its key.
 */
export const canGoOn = (answer, now) =>
  Boolean(answer.position) || (answer.state === "waiting" && isBlank(answer) && now - answer.createdAt < KEPT_MS);

/** An empty message of a conversation. */
export function newMessage(conversation, role, parent, text, now) {
  return { id: newId(), conversation, role, parent, text, createdAt: now, version: 0 };
}

/**
 * An answer that this page will write.
 * @param {any} begun an answer whose text it continues, or null
 */
export function newAnswer(conversation, parent, request, begun, now) {
  const message = newMessage(conversation, "assistant", parent, begun?.text ?? "", now);
  const { reasoning, reasoningMs, tools, tokens, figures, usage } = begun ?? /** @type {any} */ ({});
  const kept = begun && { reasoning, reasoningMs, tools, tokens, begunUsage: usage, begun: begun.id };
  const watch = new Stopwatch(performance.now(), figures?.tokens);
  return { ...message, ...kept, state: "waiting", request, stream: null, watch };
}

/** The answers to a request, of which there are several if it asks for more than one choice. @returns {any[]} */
export function newAnswers(conversation, parent, request, begun, now) {
  const { n = 1 } = request;
  // In the order of their numbers.
  const answers = Array.from({ length: n }, (_, number) => newAnswer(conversation, parent, request, begun, now + number));
  const lead = answers[0].id;
  if (n > 1) answers.forEach((each, number) => Object.assign(each, { beside: { lead, number } }));
  return answers;
}

/** Make an answer that another page has begun one that this page writes. */
export function takeOver(answer, now) {
  answer.watch = Stopwatch.goingOn(now, answer.figures);
  answer.stream = null;
  // That page may have sent its request.
  answer.numSent = 1;
  answer.version += 1;
}

/** Why an answer has ended: of one that repeated itself this says more than the finish reason. */
export const endOf = ({ finish_reason, stop_reason }) =>
  finish_reason === "length" && stop_reason === "repetition" ? stop_reason : finish_reason;

/** Whether an answer has ended before it was complete. */
export const isCut = ({ state, finish }) =>
  state === "stopped" || (state === "done" && ["length", "repetition", "context"].includes(finish));

/** Add the text, reasoning, tool calls and probabilities of one `delta` frame. */
export function append(answer, { k, x = "", r, tool, lp }, now) {
  answer.state = "streaming";
  // Of text without probabilities, as that of an answer that was begun without them, no more is known.
  if (lp) answer.tokens = withTokens(answer.tokens ?? unknown(answer.text), lp, k);
  else if (answer.tokens) answer.tokens = [...answer.tokens, ...unknown(clean(x))];
  if (r) {
    answer.reasoningSince ??= now - (answer.reasoningMs ?? 0);
    answer.reasoning = (answer.reasoning ?? "") + clean(r);
    answer.reasoningMs = now - answer.reasoningSince;
  }
  for (const piece of tool ?? []) addToolPiece(answer, piece);
  answer.text += clean(x);
  answer.watch.add(k, now);
  answer.version += 1;
}

/** Note why the server has ended an answer. Of several at once others may go on. */
export function finish(answer, frame, now) {
  answer.finish = endOf(frame);
  if (answer.beside) answer.watch.stop(now);
  answer.version += 1;
}

/** Whether an answer has ended while others of its request may go on. */
export const hasFinished = ({ beside, finish: reason }) => Boolean(beside && reason);

/**
 * End an answer, with the server's `timings` and `usage` if it has sent them: those of all answers of the request. One whose
 * length was limited by the model's context of `size` tokens says that.
 */
export function end(answer, state, { timings, usage } = /** @type {any} */ ({}), now, size = Infinity) {
  answer.state = state;
  // They hold the text a second time, piece by piece, and the whole conversation.
  answer.stream = answer.request = null;
  answer.position = undefined;
  answer.watch.stop(now, answer.beside ? null : timings?.decode_tok_s);
  answer.figures = answer.watch.read(now);
  const completion_tokens = answer.beside ? answer.figures.tokens : usage?.completion_tokens;
  if (usage) answer.usage = { prompt_tokens: usage.prompt_tokens, completion_tokens };
  if (answer.finish === "length" && usage?.prompt_tokens + completion_tokens >= size) answer.finish = "context";
  answer.version += 1;
}

/** Take over the fields of a message that another tab has stored; what it has removed is removed. */
export function refresh(message, stored) {
  const known = Object.keys(toMessage(message)).map((name) => [name, undefined]);
  const fields = { ...Object.fromEntries(known), ...stored };
  const isSame = ([name, value]) => message[name] === value || JSON.stringify(message[name]) === JSON.stringify(value);
  if (!Object.entries(fields).every(isSame)) Object.assign(message, fields, { version: message.version + 1 });
}

/** `{k, id, name}` begins call number k; `{k, a}` is a piece of its arguments. */
function addToolPiece(answer, { k, id, name, a }) {
  const tools = [...(answer.tools ?? [])];
  tools[k] ??= { id: String(id ?? k), name: String(name ?? ""), arguments: "" };
  if (a) tools[k] = { ...tools[k], arguments: tools[k].arguments + a };
  answer.tools = tools.filter(Boolean);
}

const unknown = (text) => (text ? [{ text }] : []);

const clean = (text) => text.replaceAll("\r", "");
