// What is measured of one answer: the time to its first token as the reader saw it, and tokens per second. Those are
// counted as they arrive until the server has told its own figure: what arrives late arrives at once.
// Times are milliseconds of performance.now(), given by the caller, so that tests own the clock.

export class Stopwatch {
  /** Starts when the question is sent. */
  constructor(now) {
    this.sentAt = now;
    this.firstAt = null;
    this.endedAt = null;
    this.firstTokens = 0;
    this.tokens = 0;
    this.serverRate = null;
  }

  /** Count tokens that have just arrived. */
  add(count, now) {
    if (this.firstAt === null) {
      this.firstAt = now;
      this.firstTokens = count;
    }
    this.tokens += count;
  }

  /** The answer has ended, at the server's own `rate` where it has told one; the figures stand still from here on. */
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
    const later = this.tokens - this.firstTokens;
    return {
      tokens: this.tokens,
      firstTokenMs: started ? this.firstAt - this.sentAt : null,
      waitedMs: (started ? this.firstAt : end) - this.sentAt,
      rate: this.serverRate ?? (later > 0 && end > this.firstAt ? (later * 1000) / (end - this.firstAt) : null),
    };
  }
}

/** Seconds with the digits a reader can use: 42 ms, 0.31 s, 4.2 s. */
export function formatDuration(ms) {
  if (ms < 100) return `${Math.max(1, Math.round(ms))} ms`;
  return `${(ms / 1000).toFixed(ms < 1000 ? 2 : 1)} s`;
}

/** Tokens per second: one decimal below 10, none above. */
export function formatRate(rate) {
  return rate < 10 ? rate.toFixed(1) : String(Math.round(rate));
}
