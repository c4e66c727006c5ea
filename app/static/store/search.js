// Search over titles and texts. The texts are kept in lower case, one string for each conversation, so that a search
// reads no records.

export class Search {
  /** @type {Map<string, Map<string, string>>} texts of messages, by conversation and message */
  #texts = new Map();
  /** @type {Map<string, string>} joined texts, made when they are first searched */
  #joined = new Map();
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
    for (const { id, conversation, text } of messages) {
      if (!this.#texts.has(conversation)) this.#texts.set(conversation, new Map());
      this.#texts.get(conversation).set(id, text);
      this.#joined.delete(conversation);
    }
  }

  /** Forget a conversation. */
  remove(conversation) {
    this.#texts.delete(conversation);
    this.#joined.delete(conversation);
  }

  /**
   * The conversations whose title or text contains every word of a query, in their order.
   * @template {{id: string, title: string}} T
   * @param {T[]} conversations
   * @param {string} query
   * @returns {T[]}
   */
  find(conversations, query) {
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    return conversations.filter(({ id, title }) => {
      const name = title.toLowerCase();
      return words.every((word) => name.includes(word) || this.#textOf(id).includes(word));
    });
  }

  async #readAll() {
    const messages = await this.#read();
    // What was read before stays.
    if (!messages) return this.outdate();
    this.#texts.clear();
    this.#joined.clear();
    return this.add(messages);
  }

  #textOf(conversation) {
    if (!this.#joined.has(conversation)) {
      this.#joined.set(conversation, [...(this.#texts.get(conversation)?.values() ?? [])].join("\n").toLowerCase());
    }
    return this.#joined.get(conversation);
  }
}
