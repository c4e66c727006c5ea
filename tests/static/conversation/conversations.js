// Conversations of the tests, whose library is a fake one that is new for each test.

import { beforeEach, mock } from "node:test";
import { Conversation } from "../../../app/static/conversation/conversation.js";
import { newConversation } from "../../../app/static/tree/records.js";
import { FakeLibrary } from "./fake_library.js";

export let library;
/** What was kept of conversations without messages. */
export let kept;

let clock = 0;
// Messages of the same millisecond have no order.
mock.method(Date, "now", () => (clock += 1));

beforeEach(() => {
  library = new FakeLibrary();
  kept = [];
});

/** What a test replaces here, all conversations use. */
export const link = {
  isReady: true, canContinue: true, model: "guide", delayAfter: () => 0,
  start: (id, _request) => ({ id }), resume: (id, _position) => ({ id }), cancel: (_id, _stop) => {},
};
const services = () => ({ link: /** @type {any} */ (link), library, onChange: () => {}, onGrowth: () => {}, keepNew: (fields) => kept.push(fields) });
export const begin = () => new Conversation(newConversation(1), [], services());
/** The conversation as a page shows it that reads it now: after a reload, or in another tab. */
export const reopened = ({ id }) => new Conversation(library.get(id), library.messages(id), services());
export const texts = ({ messages }) => messages.map(({ text, state }) => text || state);

export function ask(conversation, question, answer) {
  conversation.ask(question);
  reply(conversation, answer);
}

export function reply(conversation, answer) {
  const { stream } = conversation.open;
  conversation.receive(stream, { t: "delta", k: 1, x: answer });
  conversation.receive(stream, { t: "done" });
}

export function refuse(conversation, code = "overloaded") {
  conversation.receive(conversation.open.stream, { t: "error", code, message: "No." });
}

/** Ask what is in the draft, as the field does. */
export function askDraft(conversation) {
  const { text } = conversation.draft;
  conversation.draft.write("");
  conversation.ask(text);
}
