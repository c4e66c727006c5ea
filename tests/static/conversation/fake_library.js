// A library whose records are maps: what was saved last is what the next page reads.

import { toConversation, toMessage } from "../../../app/static/tree/records.js";

export class FakeLibrary {
  conversations = new Map();
  stored = new Map();

  get(id) {
    return this.conversations.get(id);
  }

  /** What a page that opens the conversation gets. */
  messages(id) {
    return [...this.stored.values()].filter(({ conversation }) => conversation === id).map((message) => ({ ...message }));
  }

  save(conversation, messages = [], removed = []) {
    this.conversations.set(conversation.id, toConversation(conversation));
    for (const message of messages) this.stored.set(message.id, toMessage(message));
    for (const id of removed) this.stored.delete(id);
  }
}
