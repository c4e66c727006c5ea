// The types of settings, for the check of types alone: no browser loads this.

/**
 * @typedef {object} Field
 * @property {string} name the request's field
 * @property {"number" | "integer" | "text" | "lines" | "choice" | "json"} kind
 * @property {number} [min]
 * @property {number} [max] of "lines": their number
 * @property {string[]} [choices]
 * @property {boolean} [isList] of "json"
 * @property {string} [needs] the capability of the model without which it is not offered
 */

/**
 * What the server's OpenAPI document says about a field of a request.
 * @typedef {object} Parameter
 * @property {string} description
 * @property {string} type
 * @property {number} [minimum]
 * @property {number} [maximum]
 * @property {number} [maxItems] of a list
 * @property {number} [maxLength] of a list's texts
 */

export {};
