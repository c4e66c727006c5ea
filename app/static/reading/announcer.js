// Tells screen readers what is written, in pieces: at most one in two seconds, and never a part of a sentence.

import { useLayoutEffect, useState } from "preact/hooks";
import { html } from "../parts/html.js";
import { Announced } from "./announced.js";

const EVERY_MS = 2000;

/** A hidden region with the last piece of the answer that this page writes. @param {{answer: any}} props */
export function Announcer({ answer }) {
  const [piece, say] = useState({ number: 0, text: "" });
  // In the task that shows the region: what arrives after that is told.
  useLayoutEffect(() => {
    if (!answer) return undefined;
    const announced = new Announced(answer.text);
    const tell = (isOver) => {
      const text = announced.next(answer.text, isOver);
      if (text) say(({ number }) => ({ number: number + 1, text }));
    };
    const timer = setInterval(() => tell(false), EVERY_MS);
    return () => {
      clearInterval(timer);
      tell(true);
    };
  }, [answer?.id]);
  // A new element: a piece that is equal to the one before is told too.
  return html`<div class="unseen" aria-live="polite"><p key=${piece.number}>${piece.text}</p></div>`;
}
