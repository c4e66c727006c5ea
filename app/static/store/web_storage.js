// Short texts by name, in the browser's storage or the tab's. Where it is blocked or full, the page holds them itself.

export class WebStorage {
  #open;
  /** What the storage did not take. @type {Map<string, string>} */
  #held = new Map();

  /** @param {() => Storage} open gives the storage, or throws where it is blocked */
  constructor(open) {
    this.#open = open;
  }

  /** All names. */
  get names() {
    const names = [...this.#held.keys()];
    try {
      return names.concat(Object.keys(this.#open()));
    } catch {
      return names;
    }
  }

  /** The text of a name, or null. @param {string} name */
  get(name) {
    if (this.#held.has(name)) return this.#held.get(name);
    try {
      return this.#open().getItem(name);
    } catch {
      return null;
    }
  }

  /** @param {string} name @param {string} text */
  set(name, text) {
    try {
      this.#open().setItem(name, text);
      this.#held.delete(name);
    } catch {
      this.#held.set(name, text);
    }
  }

  /** @param {string} name */
  remove(name) {
    this.#held.delete(name);
    try {
      this.#open().removeItem(name);
    } catch {
      // A blocked storage holds nothing.
    }
  }
}

/** Outlives the tab. */
export const browserStorage = new WebStorage(() => localStorage);
/** Ends with the tab. */
export const tabStorage = new WebStorage(() => sessionStorage);
