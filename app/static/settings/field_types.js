// The types of settings, for the check of types alone: no browser loads this.

/**
 * @typedef {object} Field
 * @property {string} name the request's field
 * @property {"number" | "integer" | "text" | "lines" | "choice"} kind
 * @property {number} [min]
 * @property {number} [max] of "lines": their number
 * @property {string[]} [choices]
 */

export {};
