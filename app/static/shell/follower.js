// Keeps the end of the conversation in view until the user scrolls up, and again after the user has scrolled back.
//
// What the user unfolds is read from where it begins: the end is not followed then.
//
// Only the user scrolls upwards (wheel, touch, keys, scrollbar, the browser's search and the page's): while the end is
// followed, scroll anchoring is off (page.css), and every change of size scrolls to the end within the same frame.
// Contents that are lower for a part of a frame only do not scroll the log either, though the browser would move it to
// their end if it laid them out just then: the log keeps a floor, an element as high as they were in the last frame.

// A user who scrolls down to within this distance of the end has returned to it.
const NEAR_PX = 48;
// Positions are rounded to pixels.
const THERE_PX = 1;
// What unfolds a part of a message.
const UNFOLDS = "summary, [aria-expanded]";
// Keys that scroll up, and what they do something else in.
const UPWARDS = ["ArrowUp", "PageUp", "Home"];
const FIELDS = "input, textarea, select";

export class Follower {
  #log;
  #contents;
  #floor;
  #onChange;
  #isFollowing = true;
  #lastTop = 0;

  /**
   * @param {HTMLElement} log the scrolling element
   * @param {HTMLElement} contents its growing content; while it is empty, nothing is followed
   * @param {HTMLElement} floor an element of the log, of no height, that nobody sees
   * @param {(isFollowing: boolean) => void} onChange
   */
  constructor(log, contents, floor, onChange) {
    this.#log = log;
    this.#contents = contents;
    this.#floor = floor;
    this.#onChange = onChange;
    log.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    contents.addEventListener("click", ({ target }) => /** @type {Element} */ (target).closest(UNFOLDS) && this.#set(false));
    // The browser begins to scroll with a later frame: an answer that grows in each would scroll to its end before.
    log.addEventListener("keydown", (event) => this.#pressed(event));
    const observer = new ResizeObserver(() => {
      this.#floor.style.height = `${this.#contents.getBoundingClientRect().height}px`;
      if (this.#isFollowing) this.#toEnd();
      // All of what was unfolded is in view.
      else if (this.#distance <= THERE_PX) this.#set(true);
    });
    observer.observe(log);
    observer.observe(contents);
  }

  /** Go to the end and stay there. */
  follow() {
    this.#set(true);
    this.#toEnd();
  }

  /** Scroll to an element in the log, as the user does. @param {Element} element @param {ScrollIntoViewOptions} where */
  goTo(element, where) {
    this.#set(false);
    element.scrollIntoView(where);
    this.#lastTop = this.#log.scrollTop;
  }

  /** From the end. */
  get #distance() {
    const { scrollTop, scrollHeight, clientHeight } = this.#log;
    return scrollHeight - scrollTop - clientHeight;
  }

  #pressed({ key, target, defaultPrevented }) {
    if (defaultPrevented || !UPWARDS.includes(key) || target.closest(FIELDS)) return;
    if (this.#log.scrollTop > 0) this.#set(false);
  }

  #scrolled() {
    const { scrollTop } = this.#log;
    const distance = this.#distance;
    if (scrollTop < this.#lastTop && distance > THERE_PX) this.#set(false);
    if (scrollTop > this.#lastTop && distance < NEAR_PX) this.#set(true);
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
