// Paces drawing: at most once per frame, and never more than a fifth of the time, however long the answer.

/**
 * @param {() => void} paint draws the whole page
 * @returns {() => void} asks for one drawing soon
 */
export function makePainter(paint) {
  let isQueued = false;
  let earliest = 0;

  const run = () => {
    const start = performance.now();
    if (start < earliest) {
      requestAnimationFrame(run);
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
    requestAnimationFrame(run);
  };
}
