// Counts the work of regular expressions, which takes the place of time: it is the same on each machine.

/**
 * How many characters regular expressions look at while `run` runs: those of their matches and what they skip before, and
 * the rest of a text without a match, unless they look only at its beginning. Above `most` they throw.
 * @param {() => void} run
 */
export function numLookedAt(run, most = Infinity) {
  const { exec } = RegExp.prototype;
  let count = 0;
  RegExp.prototype.exec = function (text) {
    const from = this.global || this.sticky ? this.lastIndex : 0;
    const match = exec.call(this, text);
    const isAtBeginning = this.sticky || this.source.startsWith("^");
    count += 1 + (match ? match.index + match[0].length - from : isAtBeginning ? 0 : String(text).length - from);
    if (count > most) throw new Error(`more than ${most} characters were looked at`);
    return match;
  };
  try {
    run();
  } finally {
    RegExp.prototype.exec = exec;
  }
  return count;
}
