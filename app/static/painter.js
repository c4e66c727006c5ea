// Paces drawing: at most once per frame, and never more than a fifth of the time, however long the answer.

// A tab that nobody sees gets no frames. It is drawn now and then all the same: an answer goes on as it is shown.
const LATEST_MS = 1000;

/**
 * @param {() => void} paint draws the whole page
 * @returns {() => void} asks for one drawing soon
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
    // Cheap drawings go on every frame; the pause matters from some milliseconds on.
    earliest = end + 4 * (end - start);
  };

  return () => {
    if (isQueued) return;
    isQueued = true;
    queue();
  };
}
