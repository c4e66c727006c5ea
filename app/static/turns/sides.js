// Answers that were asked for at once, side by side. Where there is no room for all, they are moved sideways.

import { html } from "../parts/html.js";
import { isOpen } from "../tree/answer.js";

/** `answers` are the messages that its children show. @param {{answers: any[], children?: any}} props */
export function Sides({ answers, children }) {
  const isSame = answers.every((each) => !isOpen(each) && each.text && each.text === answers[0].text);
  return html`
    <div class="sides" role="group" tabindex="0" aria-label=${`${answers.length} answers side by side`}
      data-count=${answers.length}>${children}</div>
    ${isSame && html`<p class="sides-same">These answers are the same. The higher the temperature, the more answers differ.</p>`}
  `;
}
