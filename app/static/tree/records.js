// The records of conversations, as they are stored and exported, and their checks. Stored and imported data may be
// damaged or hostile: only records that pass these checks reach the page.

const ROLES = ["user", "assistant"];
const TITLES_FROM = ["user", "model", "question"];
const STATES = ["waiting", "streaming", "done", "stopped", "failed", "disconnected", "interrupted"];

/** A new random id of 20 characters. (`randomUUID` is missing on pages over plain http.) */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(10));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** @returns {import("./record_types.js").ConversationRecord} an empty conversation */
export function newConversation(now, settings = {}) {
  return {
    id: newId(),
    title: "",
    titleFrom: "question",
    isPinned: false,
    createdAt: now,
    updatedAt: now,
    head: null,
    settings,
    draft: "",
  };
}

const isText = (value) => typeof value === "string";
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const isByte = (value) => Number.isInteger(value) && value >= 0 && value < 256;
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const isId = (value) => isText(value) && /^[\w-]{1,64}$/.test(value);
const isAbsentOr = (check) => (value) => value === undefined || value === null || check(value);
const isListOf = (check) => (value) => Array.isArray(value) && value.every(check);
const isRecordOf = (checks) => (value) => isObject(value) && Object.keys(checks).every((name) => checks[name](value[name]));

const isToken = isRecordOf({
  text: isText,
  p: isAbsentOr(isNumber),
  top: isAbsentOr(isListOf(isRecordOf({ text: isText, p: isNumber }))),
  bytes: isAbsentOr(isListOf(isByte)),
  numTokens: isAbsentOr(isNumber),
  isEnd: isAbsentOr((value) => typeof value === "boolean"),
});

const areFiles = isListOf(isRecordOf({ name: isText, text: isText }));

/** Whether a value is a record of a conversation. */
export const isConversation = isRecordOf({
  id: isId,
  title: isText,
  titleFrom: isAbsentOr((value) => TITLES_FROM.includes(value)),
  hasOwnTitle: isAbsentOr((value) => typeof value === "boolean"),
  isPinned: isAbsentOr((value) => typeof value === "boolean"),
  createdAt: isNumber,
  updatedAt: isNumber,
  head: isAbsentOr(isId),
  settings: isAbsentOr(isObject),
  draft: isAbsentOr(isText),
  files: isAbsentOr(areFiles),
  queued: isAbsentOr(isRecordOf({ id: isAbsentOr(isId), text: isText, files: areFiles })),
});

/** Whether a value is a record of a message. */
export const isMessage = isRecordOf({
  id: isId,
  conversation: isId,
  parent: isAbsentOr(isId),
  role: (value) => ROLES.includes(value),
  text: isText,
  createdAt: isNumber,
  state: isAbsentOr((value) => STATES.includes(value)),
  finish: isAbsentOr(isText),
  error: isAbsentOr(isText),
  code: isAbsentOr(isText),
  keeps: (value) => value === undefined || (Number.isInteger(value) && value >= 0),
  reasoning: isAbsentOr(isText),
  reasoningMs: isAbsentOr(isNumber),
  model: isAbsentOr(isText),
  position: isAbsentOr(isRecordOf({ stream: isText, after: isListOf(isNumber) })),
  beside: isAbsentOr(isRecordOf({ lead: isId, number: isNumber })),
  tools: isAbsentOr(isListOf(isRecordOf({ id: isText, name: isText, arguments: isText }))),
  tokens: isAbsentOr(isListOf(isToken)),
  files: isAbsentOr(areFiles),
  results: isAbsentOr(isListOf(isRecordOf({ id: isText, name: isText, text: isText }))),
  usage: isAbsentOr(isRecordOf({ prompt_tokens: isNumber, completion_tokens: isNumber })),
  figures: isAbsentOr(
    isRecordOf({ tokens: isNumber, firstTokenMs: isAbsentOr(isNumber), waitedMs: isNumber, rate: isAbsentOr(isNumber) }),
  ),
});

/** Whether a value is a record of a preset. */
export const isPreset = isRecordOf({ id: isId, name: isText, settings: isObject });

const CONVERSATION_FIELDS = "id title titleFrom isPinned createdAt updatedAt head settings draft files queued".split(" ");
const MESSAGE_FIELDS = (
  "id conversation parent role text createdAt state finish error code reasoning reasoningMs tools tokens files results figures usage " +
  "model position beside isEdited isReturned keeps isUndone"
).split(" ");

const pick = (fields, value) =>
  Object.fromEntries(fields.filter((name) => value[name] !== undefined).map((name) => [name, value[name]]));

/** The fields of a conversation that are stored. @returns {import("./record_types.js").ConversationRecord} */
export const toConversation = (value) => ({
  ...newConversation(value.createdAt),
  // Of older records, which do not tell a title of the model from that of the first question.
  ...(value.title && value.hasOwnTitle !== undefined && { titleFrom: value.hasOwnTitle ? "user" : "model" }),
  .../** @type {object} */ (pick(CONVERSATION_FIELDS, value)),
});

/** The fields of a message that are stored. @returns {import("./record_types.js").MessageRecord} */
export const toMessage = (value) => /** @type {any} */ (pick(MESSAGE_FIELDS, value));
