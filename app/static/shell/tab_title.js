// The title of the tab: that of the shown conversation, with a mark when an answer has ended while nobody looked.

const PAGE = "Quire";
const MARK = "● ";

export class TabTitle {
  #title = "";
  #hasOpen = false;
  #isMarked = false;
  /** What the tab shows now. */
  #shown = PAGE;

  constructor() {
    addEventListener("visibilitychange", () => {
      if (document.hidden) return;
      this.#isMarked = false;
      this.#show();
    });
  }

  /**
   * @param {string} title of the shown conversation, "" of a new one
   * @param {boolean} hasOpen whether an answer of any conversation is being written
   */
  update(title, hasOpen) {
    if (document.hidden && this.#hasOpen && !hasOpen) this.#isMarked = true;
    this.#hasOpen = hasOpen;
    this.#title = title;
    this.#show();
  }

  #show() {
    const shown = (this.#isMarked ? MARK : "") + (this.#title ? `${this.#title} - ${PAGE}` : PAGE);
    if (shown !== this.#shown) document.title = this.#shown = shown;
  }
}
