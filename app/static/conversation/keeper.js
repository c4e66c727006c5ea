// When a conversation is stored: what is done at once, open answers and the draft at most a second later.

// A crash of the tab loses no more.
const KEEP_MS = 1000;

export class Keeper {
  #store;
  #open;
  #keptAt = 0;
  #isChanged = false;
  #isOver = false;
  /** @type {any} */
  #timer = null;

  /**
   * @param {(messages: any[], removed: string[]) => void} store stores them and the conversation
   * @param {() => any[]} open the open answers
   */
  constructor(store, open) {
    this.#store = store;
    this.#open = open;
  }

  /** Store the conversation, messages of it, and that ids were removed. */
  save(messages = [], removed = []) {
    this.#keptAt = performance.now();
    this.#isChanged = false;
    if (!this.#isOver) this.#store(messages, removed);
  }

  /** Store within a second what has changed. Time is measured here too: timers of a hidden tab may fire once a minute. */
  soon() {
    this.#isChanged = true;
    const left = this.#keptAt + KEEP_MS - performance.now();
    if (left <= 0) this.now();
    else this.#timer ??= setTimeout(() => this.now(), left);
  }

  /** Store now what has changed. */
  now() {
    clearTimeout(this.#timer);
    this.#timer = null;
    const open = this.#open();
    if (this.#isChanged) this.save(open);
  }

  /** Store nothing any more, because the conversation was deleted. */
  end() {
    this.#isOver = true;
    clearTimeout(this.#timer);
  }
}
