// Keeps the end of the log in view while the reader is there, and leaves a reader who scrolled up alone.

// Closer to the end than this counts as being there.
const NEAR_PX = 48;

export class Follower {
  #element;
  #isFollowing = true;
  #lastTop = 0;

  /** @param {HTMLElement} element the scrolling element */
  constructor(element) {
    this.#element = element;
    element.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    new ResizeObserver(() => this.update()).observe(element);
  }

  /** Go to the end and stay there, as after a new question. */
  follow() {
    this.#isFollowing = true;
  }

  /** Go to the end now. */
  toEnd() {
    this.#element.scrollTop = this.#element.scrollHeight;
  }

  /** The contents may have grown. */
  update() {
    if (this.#isFollowing) this.toEnd();
  }

  #scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.#element;
    const isNear = scrollHeight - scrollTop - clientHeight < NEAR_PX;
    // Only the reader scrolls upwards; growth alone never ends the following.
    if (isNear) this.#isFollowing = true;
    else if (scrollTop < this.#lastTop) this.#isFollowing = false;
    this.#lastTop = scrollTop;
  }
}
