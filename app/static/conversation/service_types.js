// The types of what conversations use, for the check of types alone: no browser loads this.

/**
 * @typedef {object} Services
 * @property {{isReady: boolean, canContinue: boolean, model: string | null, answersAnything?: boolean,
 *   details?: Record<string, any>, start: (id: string, request: object, key?: string) => any,
 *   resume: (id: string, position: import("../tree/record_types.js").Position) => any,
 *   cancel: (id: string, stop?: {position?: import("../tree/record_types.js").Position, request?: object} | null) => void,
 *   delayAfter: (numAttempts: number) => number}} link
 * @property {{get: (id: string) => any, save: (conversation: any, messages?: any[], removed?: string[]) => void}} library
 * @property {(fields: object) => void} keepNew keeps the draft of a conversation without messages, and settings that were
 *   set there
 * @property {() => void} onChange called after every change but these
 * @property {() => void} onGrowth called when the open answer has more text, or waits for something else
 */

export {};
