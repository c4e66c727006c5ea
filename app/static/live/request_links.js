// Which request of the engine writes, or has written, which answer of the shown conversation.

import { useLayoutEffect, useRef } from "preact/hooks";

const elementOf = (answer) => /** @type {HTMLElement | null} */ (document.querySelector(`.answer[data-message="${answer}"]`));

/** @typedef {{requestOf: (answer: string) => string | undefined, answerOf: (request: string) => string | undefined}} Links ids of messages and of requests */

/**
 * Give the answers of a conversation the hues of their requests, as long as the component is shown.
 * @param {{messages: any[]}} conversation
 * @param {import("./picture.js").Picture} picture
 * @returns {Links}
 */
export function useLinks(conversation, picture) {
  /** Of answers that this view has seen being written. @type {{current: Map<string, string>}} */
  const requests = useRef(new Map());
  for (const { id, stream, position } of conversation.messages) {
    const request = (stream?.position ?? position)?.stream;
    if (request) requests.current.set(id, request);
  }
  useLayoutEffect(() => {
    for (const [answer, request] of requests.current) paint(elementOf(answer), picture.find(request)?.hue);
  });
  useLayoutEffect(() => () => {
    for (const answer of requests.current.keys()) paint(elementOf(answer), undefined);
  }, []);
  return {
    requestOf: (answer) => requests.current.get(answer),
    answerOf: (request) => [...requests.current].find(([, each]) => each === request)?.[0],
  };
}

/** Bring an answer into view. @param {string} answer */
export function showAnswer(answer) {
  elementOf(answer)?.scrollIntoView({ block: "nearest" });
}

function paint(element, hue) {
  if (!element) return;
  if (hue) element.dataset.hue = String(hue);
  else delete element.dataset.hue;
}
