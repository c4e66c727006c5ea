// Keeps the end of the conversation in view until the reader turns away from it, and again once they are back.
//
// Only the reader ever moves the log upwards, by wheel, finger, key, scrollbar or search: while the end is followed,
// scroll anchoring is off (page.css), and what changes a size brings the end back into view within the same frame.

// A reader who comes down and is as near to the end as this has come back to it.
const NEAR_PX = 48;
// Positions are rounded: within a pixel is there.
const THERE_PX = 1;

export class Follower {
  #log;
  #contents;
  #onChange;
  #isFollowing = true;
  #lastTop = 0;

  /**
   * @param {HTMLElement} log the scrolling element
   * @param {HTMLElement} contents what grows in it; while it is empty there is no end to follow
   * @param {(isFollowing: boolean) => void} onChange
   */
  constructor(log, contents, onChange) {
    this.#log = log;
    this.#contents = contents;
    this.#onChange = onChange;
    log.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    const observer = new ResizeObserver(() => this.#isFollowing && this.#toEnd());
    observer.observe(log);
    observer.observe(contents);
  }

  /** Go to the end and stay there. */
  follow() {
    this.#set(true);
    this.#toEnd();
  }

  #scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.#log;
    const distance = scrollHeight - scrollTop - clientHeight;
    if (distance <= THERE_PX) this.#set(true);
    else if (scrollTop < this.#lastTop) this.#set(false);
    else if (distance < NEAR_PX) this.#set(true);
    this.#lastTop = scrollTop;
  }

  #toEnd() {
    if (!this.#contents.firstElementChild) return;
    this.#log.scrollTop = this.#log.scrollHeight;
    this.#lastTop = this.#log.scrollTop;
  }

  #set(isFollowing) {
    if (this.#isFollowing === isFollowing) return;
    this.#isFollowing = isFollowing;
    this.#onChange(isFollowing);
  }
}
