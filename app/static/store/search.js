// Search over titles and texts. The texts are kept, also in lower case once they are searched, so that a search reads no
// records.

import { isSummary } from "../tree/cut.js";
import { excerptOf, wordsOf } from "./excerpt.js";

/**
 * @typedef {{id: string, text: string, createdAt: number, lower?: string}} Text of a message
 * @typedef {object} Place where words were found
 * @property {string} conversation
 * @property {string} message
 * @property {string[]} words
 * @property {string[]} excerpt see excerpt.js
 */

export class Search {
  /** By conversation and message. @type {Map<string, Map<string, Text>>} */
  #texts = new Map();
  #read;
  /** @type {Promise<void> | null} */
  #reading = null;

  /** @param {() => Promise<any[] | undefined>} read gives all messages, or undefined where they cannot be read */
  constructor(read) {
    this.#read = read;
  }

  /** Read all texts, unless they are known. */
  prepare() {
    this.#reading ??= this.#readAll();
    return this.#reading;
  }

  /** Read them again with the next search, because another tab may have changed them. */
  outdate() {
    this.#reading = null;
  }

  /** Add or replace the texts of messages. */
  add(messages) {
    for (const message of messages) {
      const { id, conversation, createdAt } = message;
      if (!this.#texts.has(conversation)) this.#texts.set(conversation, new Map());
      this.#texts.get(conversation).set(id, { id, text: textOf(message), createdAt });
    }
  }

  /** Forget a conversation. */
  remove(conversation) {
    this.#texts.delete(conversation);
  }

  /**
   * The conversations whose title or text contains every word of a query, in their order; each with a place in its texts,
   * unless the words are in its title alone.
   * @template {{id: string, title: string}} T
   * @param {T[]} conversations
   * @param {string} query
   * @returns {{conversation: T, place: Place | null}[]}
   */
  find(conversations, query) {
    const words = wordsOf(query);
    return conversations.flatMap((conversation) => {
      const name = conversation.title.toLowerCase();
      const texts = this.#textsOf(conversation.id);
      const isIn = (word) => name.includes(word) || texts.some(({ lower }) => lower.includes(word));
      return words.every(isIn) ? [{ conversation, place: placeIn(texts, words, conversation) }] : [];
    });
  }

  async #readAll() {
    const messages = await this.#read();
    // What was read before stays.
    if (!messages) return this.outdate();
    this.#texts.clear();
    return this.add(messages);
  }

  #textsOf(conversation) {
    const texts = [...(this.#texts.get(conversation)?.values() ?? [])];
    for (const each of texts) each.lower ??= each.text.toLowerCase();
    return texts;
  }
}

/** What the user, the model and tools have written: not the question that the page asks for a summary. */
function textOf(message) {
  if (isSummary(message)) return "";
  return [message.text, ...(message.results ?? []).map(({ text }) => text)].filter(Boolean).join("\n");
}

/** The text with the most of the words; of several the oldest, but for what stands in the list already. */
function placeIn(texts, words, { id, title }) {
  let most = 0;
  let best = null;
  const isTitle = ({ text }) => Number(text === title);
  for (const each of texts.toSorted((a, b) => isTitle(a) - isTitle(b) || a.createdAt - b.createdAt)) {
    const count = words.filter((word) => each.lower.includes(word)).length;
    if (count > most) [most, best] = [count, each];
  }
  return best && { conversation: id, message: best.id, words, excerpt: excerptOf(best.text, words) };
}
