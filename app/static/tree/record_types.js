// The types of records, for the check of types alone: no browser loads this.

/**
 * @typedef {object} ConversationRecord
 * @property {string} id
 * @property {string} title
 * @property {"user" | "model" | "question"} titleFrom who has written the title; else it is the beginning of the first question
 * @property {boolean} isPinned
 * @property {number} createdAt milliseconds since 1970
 * @property {number} updatedAt
 * @property {string | null} head the last message of the branch that is shown
 * @property {Record<string, any>} settings what differs from the server's defaults
 * @property {string} draft the text in the input field
 * @property {TextFile[]} [files] beside that text
 * @property {{id?: string, text: string, files: TextFile[]} | null} [queued] a question that waits for the end of the open answer
 *
 * @typedef {object} MessageRecord
 * @property {string} id
 * @property {string} conversation
 * @property {string | null} parent
 * @property {"user" | "assistant"} role
 * @property {string} text
 * @property {number} createdAt
 * @property {string} [state] of an answer: waiting, streaming, done, stopped, failed, disconnected or interrupted
 * @property {string} [finish] the server's finish reason, "repetition", or "context" where that was full
 * @property {string} [error]
 * @property {string} [code] the server's error code
 * @property {string} [reasoning]
 * @property {number} [reasoningMs]
 * @property {ToolCall[]} [tools]
 * @property {Token[]} [tokens] of an answer whose request has asked for probabilities
 * @property {TextFile[]} [files] of a question
 * @property {{id: string, name: string, text: string}[]} [results] of the calls of the answer before, instead of a text
 * @property {{tokens: number, firstTokenMs: number | null, waitedMs: number, rate: number | null}} [figures]
 * @property {{prompt_tokens: number, completion_tokens: number}} [usage]
 * @property {Position} [position] of an open answer that the server keeps: where its rest begins, in its choice alone
 * @property {{lead: string, number: number} | null} [beside] of an answer that is shown beside others of its request, see
 *   tree/beside.js: the id of the first one, and the number of its choice
 * @property {string} [model]
 * @property {boolean} [isEdited] whether the user has written this answer
 * @property {number} [keeps] of a cut: how many messages up to this one are still sent, see tree/cut.js
 * @property {boolean} [isUndone] whether the cut is undone
 * @property {boolean} [isReturned] whether the question of this failed answer is back in the draft
 *
 * @typedef {{conversations: ConversationRecord[], messages: MessageRecord[]}} Records
 * @typedef {{stream: string, after: number[]}} Position the server's id of a stream, and the number of the last token of
 *   each choice that was received
 * @typedef {{text: string, p?: number, top?: {text: string, p: number}[], bytes?: number[], numTokens?: number,
 *   isEnd?: boolean}} Token its text, its probability if that is known, and the most probable others; the bytes of one that ends
 *   within a character; how many tokens it is if they are one character; whether it ended the answer and is not part of it
 * @typedef {{name: string, text: string}} TextFile
 * @typedef {Pick<ConversationRecord, "draft" | "files" | "queued">} DraftFields
 * @typedef {{id: string, name: string, arguments: string}} ToolCall
 * @typedef {{id: string, name: string, settings: Record<string, any>}} PresetRecord
 */

export {};
