// Limits rendering: at most once per frame, and at most a fifth of the time, also for long answers.

// A hidden tab gets no animation frames. It is rendered now and then, because credit is granted when text is shown.
const LATEST_MS = 1000;

/**
 * @param {() => void} paint renders the page
 * @returns {() => void} requests one rendering
 */
export function makePainter(paint) {
  let isQueued = false;
  let earliest = 0;
  let frame = 0;
  let timer = 0;

  const queue = () => {
    frame = requestAnimationFrame(run);
    timer = setTimeout(run, LATEST_MS);
  };

  const run = () => {
    cancelAnimationFrame(frame);
    clearTimeout(timer);
    const start = performance.now();
    if (start < earliest) {
      queue();
      return;
    }
    isQueued = false;
    paint();
    const end = performance.now();
    // Fast renderings happen with every frame; longer ones are followed by a pause.
    earliest = end + 4 * (end - start);
  };

  return () => {
    if (isQueued) return;
    isQueued = true;
    queue();
  };
}
