// Titles that the model writes for conversations that the user has not named, while this page waits for no answer. Where
// one cannot be had, the title stays the beginning of the first question.

import { browserStorage } from "../store/web_storage.js";
import { isOpen } from "../tree/answer.js";
import { isSummary } from "../tree/cut.js";
import { newId } from "../tree/records.js";
import { contentOf, makeRequest } from "../tree/request.js";
import { turnsOf } from "../tree/turns.js";

const NAME = "quire.titles";
const ASK = "Write a title for this conversation in at most five words, in its language. Reply with the title alone.";
// The lowest that the server knows: with --scheduling-policy priority a title waits for the answers of everybody. The other
// policies do not read it; a title is a short request of this user there.
const PRIORITY = 100;
const MAX_TOKENS = 16;
const MAX_LENGTH = 60;
// What a conversation is about is said at the beginning of each message; the rest would only cost time.
const MAX_SENT = 2000;
// "Title:", "Sure! Here is a title for it:", and whatever else ends with a colon before a quote.
const PREAMBLE = /^[^:："“„«]*(?:\btitle(?: (?:for|of) [^:："“„«]*)?[*_ ]*[:：]|[:：](?=[*_ ]*["“„«]))/i;

/** @type {import("../tree/request.js").Kind} */
const TITLE = {
  messagesOf(path) {
    const { question, answer } = beginningOf(path);
    // The server has most of it in its prefix cache.
    return [question, answer].map((message) => ({ role: message.role, text: contentOf(message).slice(0, MAX_SENT) }));
  },
  fieldsOf: () => ({ max_tokens: MAX_TOKENS, priority: PRIORITY, temperature: 0, stop: ["\n"] }),
  asks: ASK,
};

/** The first question of a branch that the user has asked, and the last answer of its turn. */
function beginningOf(path) {
  const { question, messages } = turnsOf(path).find((turn) => turn.question && !isSummary(turn.question)) ?? { messages: [] };
  return { question, answer: messages.findLast(({ role }) => role === "assistant") };
}

/** Whether the user wants them. */
export const areTitlesWanted = () => browserStorage.get(NAME) !== "off";

export function wantTitles(isWanted) {
  if (isWanted) browserStorage.remove(NAME);
  else browserStorage.set(NAME, "off");
}

export class Titler {
  #link;
  #library;
  /** Conversations whose titles were asked for: each once. */
  #asked = new Set();
  /** The title that is being written. @type {{id: string, stream: any, conversation: string, text: string} | null} */
  #open = null;

  /**
   * @param {import("./service_types.js").Services["link"]} link
   * @param {any} library
   */
  constructor(link, library) {
    this.#link = link;
    this.#library = library;
  }

  /** Ask for the title of a conversation whose answer has ended, if it should have one. */
  ask({ id, messages, settings }) {
    const { answer } = beginningOf(messages);
    if (this.#open || !this.#isUnnamed(id) || isOpen(answer) || !answer?.text) return;
    const { isReady, answersAnything, details } = this.#link;
    if (!isReady || !answersAnything || !areTitlesWanted() || this.#asked.has(id)) return;
    this.#asked.add(id);
    const request = makeRequest(messages, settings, TITLE);
    if (details?.capabilities?.reasoning) request.chat_template_kwargs = { enable_thinking: false };
    const stream = newId();
    this.#open = { id: stream, stream: this.#link.start(stream, request), conversation: id, text: "" };
  }

  /** Apply one frame that has changed the stream of the title; others are ignored. */
  receive(stream, frame) {
    if (!this.#open || this.#open.stream !== stream) return;
    if (frame.t === "delta") this.#open.text += frame.x ?? "";
    // One that has not ended is none.
    else if (frame.t === "finish" && frame.finish_reason === "stop") this.#name(this.#open);
    if (stream.isOver) this.#open = null;
  }

  /** End it, because the user waits for an answer, or the connection is lost. */
  stop() {
    if (!this.#open) return;
    this.#link.cancel(this.#open.id);
    this.#asked.delete(this.#open.conversation);
    this.#open = null;
  }

  /** Whether nobody has written a title for a conversation, which may have been deleted. */
  #isUnnamed(id) {
    return this.#library.get(id)?.titleFrom === "question";
  }

  #name({ conversation, text }) {
    const title = cleanTitle(text);
    // The user may have named it meanwhile.
    if (title && this.#isUnnamed(conversation)) this.#library.update(conversation, { title, titleFrom: "model" });
  }
}

/** What models put before and around a title is not part of it; what is too long for one, or only announces one, is none. */
export function cleanTitle(text) {
  const line = text.trim().split("\n")[0].replace(/\s+/g, " ").replace(PREAMBLE, "");
  const title = line.replace(/^[*_#"'“„«\s]+/, "").replace(/[*_"'”“».\s]+$/, "");
  return title.length > MAX_LENGTH || /[:：]$/.test(title) ? "" : title;
}
