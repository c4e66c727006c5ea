// The page before the first question.

import { html } from "../parts/html.js";
import { Quire } from "../parts/icons.js";

const ABOUT_QUIRE = [
  "What is Quire?",
  "How does paged attention work?",
  "What is continuous batching?",
  "How do I use Quire from Python?",
];
const ABOUT_ANYTHING = [
  "What can you help me with?",
  "Explain how a book is bound, step by step.",
  "Write a short poem about paper.",
  "Compare tea and coffee in a table.",
];

const OF_GUIDE = "The small model “guide” knows Quire alone, and answers each question by itself, in English.";

/** A heading, the notice (its children) if there is one, and suggested questions. */
export function Welcome({ link, onAsk, children }) {
  const isGuide = link.isReady && !link.answersAnything;
  const questions = isGuide ? ABOUT_QUIRE : ABOUT_ANYTHING;
  return html`
    <section class="welcome" aria-label="Welcome">
      <${Quire} size=${72} />
      <h2>What would you like to know?</h2>
      <p class="lead">Answers are generated on this server, one token at a time.${isGuide && html`<br />${OF_GUIDE}`}</p>
      ${link.isReady
        ? html`<ul class="suggestions">
            ${questions.map((question) => html`
              <li><button type="button" onClick=${() => onAsk(question)}>${question}</button></li>`)}
          </ul>`
        : children}
    </section>
  `;
}
