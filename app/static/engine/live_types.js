// The types of the live view, for the check of types alone: no browser loads this. docs/reference/live.md explains them.

/**
 * @typedef {object} LiveState the JSON part of a message
 * @property {number} time seconds of the server's clock, as all times here
 * @property {"own" | "all"} view
 * @property {number} block_size tokens of a block
 * @property {number} num_blocks
 * @property {LiveBlocks} blocks how many are in each state
 * @property {LiveHost} host
 * @property {LiveGroup[]} groups
 * @property {any[][]} records
 * @property {number} lost
 * @property {Figures} figures
 *
 * @typedef {{free: number, cached: number, used: number, shared: number, pinned: number, fenced: number}} LiveBlocks
 * @typedef {{total: number, used: number, owners: [number, number][]}} LiveHost
 *
 * @typedef {object} LiveGroup an unfinished request; the fields from `id` on are there for own ones
 * @property {number} n
 * @property {boolean} own
 * @property {string} state
 * @property {number} rows
 * @property {number} blocks
 * @property {number} preemptions
 * @property {number} swaps
 * @property {string} [id]
 * @property {number} [prompt]
 * @property {number} [cached]
 * @property {number} [computed]
 * @property {number} [output]
 * @property {number} [limit]
 * @property {[number, number, number[]][]} [tables] choice, tokens, and runs of blocks: first id, count, ...
 *
 * @typedef {LiveGroup & {hue: number}} Group
 * @typedef {{at: number, ms: number, isOver: boolean, shares: Share[]}} Step
 * @typedef {{n: number, hue: number, prompt: number, decode: number, accepted: number}} Share
 *
 * @typedef {{total: number, free: number, cached: number, used: number, fenced: number, host: number}} BlockFigures
 * @typedef {{p50: number, p95: number, p99: number}} Percentiles
 * @typedef {object} Figures
 * @property {string} model
 * @property {"loading" | "ready" | "draining" | "failed"} state
 * @property {number} running
 * @property {number} waiting
 * @property {number} paused
 * @property {BlockFigures} blocks
 * @property {number} tokens_per_s
 * @property {number} prompt_tokens_per_s
 * @property {Percentiles | null} first_token_ms
 * @property {Percentiles | null} between_tokens_ms
 * @property {number | null} hit_rate
 * @property {number | null} step_ms
 * @property {number | null} step_target_ms
 * @property {number} steps_over_target
 * @property {number} preemptions
 * @property {number} swaps
 * @property {number} brownout
 * @property {number} faults
 */

export {};
