// Which request of the engine writes, or has written, which answer of the shown conversation.

import { useLayoutEffect, useRef } from "preact/hooks";

const elementOf = (message) => /** @type {HTMLElement | null} */ (document.querySelector(`.answer[data-message="${message}"]`));

/**
 * @typedef {object} Links
 * @property {(message: string) => string | undefined} streamOf the server's id of the answer in a message
 * @property {(request: string) => string | undefined} messageOf the id of the message of a request, whose id begins that of the answer
 */

/**
 * Give the answers of a conversation, also those side by side, the hues of their requests, as long as the component is shown.
 * @param {{messages: any[], besides: (message: any) => any[]}} conversation
 * @param {import("../engine/picture.js").Picture} picture
 * @returns {Links}
 */
export function useLinks(conversation, picture) {
  /** The server's ids of answers that this view has seen being written, by message. @type {{current: Map<string, string>}} */
  const streams = useRef(new Map());
  const shown = conversation.messages.flatMap((message) => conversation.besides(message));
  for (const { id, stream, position } of shown) {
    const kept = (stream?.position ?? position)?.stream;
    if (kept) streams.current.set(id, kept);
  }
  useLayoutEffect(() => {
    for (const [message, stream] of streams.current) paint(elementOf(message), picture.find(stream)?.hue);
  });
  useLayoutEffect(() => () => {
    for (const message of streams.current.keys()) paint(elementOf(message), undefined);
  }, []);
  return {
    streamOf: (message) => streams.current.get(message),
    messageOf: (request) => [...streams.current].find(([, stream]) => stream.startsWith(request))?.[0],
  };
}

/** Bring an answer into view. @param {string} message its id */
export function showAnswer(message) {
  elementOf(message)?.scrollIntoView({ block: "nearest" });
}

function paint(element, hue) {
  if (!element) return;
  if (hue) element.dataset.hue = String(hue);
  else delete element.dataset.hue;
}
