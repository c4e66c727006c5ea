import assert from "node:assert/strict";
import test, { beforeEach } from "node:test";
import { Follower } from "../../../app/static/shell/follower.js";

let log;
let contents;
let floor;
let isFollowing;
/** Let the contents have a height. */
let resize;

beforeEach(() => {
  log = Object.assign(new EventTarget(), { scrollTop: 0, scrollHeight: 0, clientHeight: 100 });
  contents = Object.assign(new EventTarget(), {
    firstElementChild: {},
    getBoundingClientRect: () => ({ height: log.scrollHeight }),
  });
  floor = { style: { height: "" } };
  isFollowing = true;
  globalThis.ResizeObserver = /** @type {any} */ (class {
    constructor(onResize) {
      resize = (height) => {
        log.scrollHeight = height;
        onResize();
      };
    }

    observe() {}
  });
  new Follower(log, contents, floor, (now) => (isFollowing = now));
  resize(1000);
});

/** A click at an element within one that matches a part of a selector. */
function click(matched) {
  const event = new Event("click");
  Object.defineProperty(event, "target", { value: { closest: (selector) => selector.split(", ").includes(matched) } });
  contents.dispatchEvent(event);
}

function scroll(top) {
  log.scrollTop = top;
  log.dispatchEvent(new Event("scroll"));
}

test("the end is followed while it grows, and after the user has scrolled back to it", () => {
  assert.equal(log.scrollTop, 1000);
  scroll(700);
  resize(1100);
  assert.deepEqual([isFollowing, log.scrollTop], [false, 700]);
  scroll(1000);
  resize(1200);
  assert.deepEqual([isFollowing, log.scrollTop], [true, 1200]);
});

test("the floor is as high as the contents, followed or not", () => {
  assert.equal(floor.style.height, "1000px");
  resize(900);
  assert.equal(floor.style.height, "900px");
  scroll(500);
  resize(1100.5);
  assert.deepEqual([isFollowing, floor.style.height], [false, "1100.5px"]);
});

test("what the user unfolds stays where it is read from", () => {
  for (const unfolded of ["summary", "[aria-expanded]"]) {
    scroll(900);
    resize(1000);
    scroll(900);
    click(unfolded);
    resize(3000);
    assert.deepEqual([isFollowing, log.scrollTop], [false, 900], unfolded);
  }
});

test("the end is followed again if all of what was unfolded is in view", () => {
  scroll(900);
  click("summary");
  resize(1000);
  assert.equal(isFollowing, true);
  click("button");
  assert.equal(isFollowing, true);
});
