// Conversations in memory, where the browser stores nothing: the same methods as Database.

export class MemoryDatabase {
  #conversations = new Map();
  #messages = new Map();
  #presets = new Map();

  get isLasting() {
    return false;
  }

  async list() {
    return { found: [...this.#conversations.values()], numDamaged: 0 };
  }

  async messages(conversation) {
    const all = [...this.#messages.values()];
    const found = conversation === undefined ? all : all.filter((message) => message.conversation === conversation);
    return { found, numDamaged: 0 };
  }

  async write({ conversations, messages }, removed = []) {
    for (const record of conversations) this.#conversations.set(record.id, record);
    for (const record of messages) this.#messages.set(record.id, record);
    for (const id of removed) this.#messages.delete(id);
  }

  async remove(ids) {
    for (const id of ids) this.#conversations.delete(id);
    for (const { id, conversation } of this.#messages.values()) if (ids.includes(conversation)) this.#messages.delete(id);
  }

  async presets() {
    return [...this.#presets.values()];
  }

  async writePreset(preset) {
    this.#presets.set(preset.id, preset);
  }

  async removePreset(id) {
    this.#presets.delete(id);
  }

  close() {}
}
