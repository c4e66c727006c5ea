// The page before the first question.

import { html } from "../parts/html.js";
import { Quire } from "../parts/icons.js";

const ABOUT_QUIRE = [
  "What is Quire?",
  "How does paged attention work?",
  "What is continuous batching?",
  "How do I use Quire from Python?",
];
// What small models can do, too: smollm2 makes no table, and loses its way in a poem.
const ABOUT_ANYTHING = [
  "What can you help me with?",
  "What is photosynthesis?",
  "Give me five tips for better sleep.",
  "What is the difference between weather and climate?",
];

const OF_GUIDE = "The small model “guide” knows Quire alone, and answers each question by itself, in English.";
const OF_OTHERS = "Models make mistakes: check what matters.";

/** A heading, the notice (its children) if there is one, and suggested questions. */
export function Welcome({ link, onAsk, children }) {
  const isGuide = link.isReady && !link.answersAnything;
  const questions = isGuide ? ABOUT_QUIRE : ABOUT_ANYTHING;
  return html`
    <section class="welcome" aria-label="Welcome">
      <${Quire} size=${72} />
      <h2>What would you like to know?</h2>
      <p class="lead">Answers are generated on this server, one token at a time.
        ${link.isReady && html`<br />${isGuide ? OF_GUIDE : OF_OTHERS}`}</p>
      ${link.isReady
        ? html`<ul class="suggestions">
            ${questions.map((question) => html`
              <li><button type="button" onClick=${() => onAsk(question)}>${question}</button></li>`)}
          </ul>`
        : children}
    </section>
  `;
}
