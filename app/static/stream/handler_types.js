// The types of what connections call, for the check of types alone: no browser loads this.

/**
 * @typedef {(stream: import("./stream.js").Stream, frame: object) => void} OnFrame gets each frame that has changed an
 *   open stream
 *
 * @typedef {object} Phase
 * @property {string} name
 * @property {boolean} [isSlow] connecting for long
 * @property {number} [progress] of loading, 0 to 1
 * @property {string} [message] why loading has failed
 * @property {boolean} [wasRejected] whether the key was not accepted
 *
 * @typedef {object} SocketHandlers
 * @property {() => void} onWelcome
 * @property {() => void} onDraining
 * @property {OnFrame} onFrame
 *
 * @typedef {object} LinkHandlers
 * @property {() => void} onPhase
 * @property {OnFrame} onFrame
 * @property {(code: number) => void} onLost gets the close code
 */

export {};
