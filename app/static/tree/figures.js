// Measures one answer: the time to its first token in this page, and tokens per second. The rate is computed from
// arriving tokens until the server sends its own rate, which is more accurate if tokens arrive late, in bursts.
// Times are milliseconds of performance.now(), passed by the caller, so that tests control the clock.

export class Stopwatch {
  /** Starts when the question is sent; `begun` are the tokens of an answer that is continued. */
  constructor(now, begun = 0) {
    this.sentAt = now;
    this.firstAt = null;
    this.endedAt = null;
    this.firstTokens = 0;
    this.begun = begun;
    this.tokens = begun;
    this.serverRate = null;
    /** Since when nothing can come, and how long that was before. */
    this.awaySince = null;
    this.awayMs = 0;
  }

  /** Goes on where the page that has begun the answer had ended, with what it has measured. */
  static goingOn(now, { tokens, firstTokenMs, waitedMs } = { tokens: 0, firstTokenMs: null, waitedMs: 0 }) {
    const watch = new Stopwatch(now - waitedMs, tokens);
    if (firstTokenMs !== null) watch.firstAt = now;
    return watch;
  }

  /** The server is away, or the connection to it, until tokens arrive again. */
  pause(now) {
    if (this.firstAt !== null) this.awaySince ??= now;
  }

  /** Count tokens that have just arrived. */
  add(count, now) {
    if (this.firstAt === null) {
      this.firstAt = now;
      this.firstTokens = count;
    }
    if (this.awaySince !== null) this.awayMs += now - this.awaySince;
    this.awaySince = null;
    this.tokens += count;
  }

  /** End the measurement, with the server's `rate` if it has sent one; the figures no longer change. */
  stop(now, rate = null) {
    this.endedAt ??= now;
    this.serverRate = rate;
  }

  /**
   * The figures at `now`. `rate` is null until a second delta has come: the tokens of the first one
   * took an unknown part of the time before it.
   * @returns {{tokens: number, firstTokenMs: number | null, waitedMs: number, rate: number | null}}
   */
  read(now) {
    const end = this.endedAt ?? now;
    const started = this.firstAt !== null;
    const workedMs = started ? (this.awaySince ?? end) - this.firstAt - this.awayMs : 0;
    const later = this.tokens - this.begun - this.firstTokens;
    return {
      tokens: this.tokens,
      firstTokenMs: started ? this.firstAt - this.sentAt : null,
      waitedMs: (started ? this.firstAt : end) - this.sentAt,
      rate: this.serverRate ?? (later > 0 && workedMs > 0 ? (later * 1000) / workedMs : null),
    };
  }
}

/** A duration with two significant digits: 0.14 ms, 4.2 ms, 42 ms, 0.31 s, 4.2 s. */
export function formatDuration(ms) {
  if (ms < 10) return `${ms.toFixed(ms < 1 ? 2 : 1)} ms`;
  if (ms < 100) return `${Math.round(ms)} ms`;
  return `${(ms / 1000).toFixed(ms < 1000 ? 2 : 1)} s`;
}

/** Tokens per second: one decimal below 10, none above. */
export function formatRate(rate) {
  return rate < 10 ? rate.toFixed(1) : String(Math.round(rate));
}
