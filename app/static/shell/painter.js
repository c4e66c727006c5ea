// Limits rendering: at most once per frame, and at most a fifth of the time, also for long answers. The growth of an answer
// is rendered without the rest of the page.

// A hidden tab gets no animation frames. It is rendered now and then, because credit is granted when text is shown.
const LATEST_MS = 1000;
// On a busy computer a rendering may be interrupted for longer than it takes.
const LONGEST_PAUSE_MS = 500;

/**
 * @param {{paint: () => void, paintGrowth: () => void, onPainted: () => void}} page
 * @returns {{draw: () => void, drawGrowth: () => void}} request one rendering, of all or of what has grown
 */
export function makePainter({ paint, paintGrowth, onPainted }) {
  let isQueued = false;
  let isAll = false;
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
    const wasAll = isAll;
    isAll = false;
    if (wasAll) paint();
    else paintGrowth();
    // Preact renders single components in a microtask, which was queued before this one.
    queueMicrotask(() => {
      onPainted();
      const end = performance.now();
      // Fast renderings happen with every frame; longer ones are followed by a pause.
      earliest = end + Math.min(4 * (end - start), LONGEST_PAUSE_MS);
    });
  };

  const drawGrowth = () => {
    if (isQueued) return;
    isQueued = true;
    queue();
  };

  const draw = () => {
    isAll = true;
    drawGrowth();
  };

  return { draw, drawGrowth };
}
