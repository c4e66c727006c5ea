// What is set for the page, and not for a conversation.

import { useState } from "preact/hooks";
import { areTitlesWanted, wantTitles } from "../conversation/titler.js";
import { html } from "../parts/html.js";
import { THEMES, readTheme, setTheme } from "./theme.js";

/** @param {{canWriteTitles: boolean}} props whether the model is one that is asked for them */
export function PageSettings({ canWriteTitles }) {
  const [theme, chooseTheme] = useState(readTheme());
  const [hasTitles, chooseTitles] = useState(areTitlesWanted());
  return html`
    <h3>For the whole page</h3>
    <p class="field">
      <label for="theme">Theme of the page</label>
      <select id="theme" value=${theme} onChange=${(event) => {
        setTheme(event.target.value);
        chooseTheme(event.target.value);
      }}>
        ${THEMES.map(([value, label]) => html`<option value=${value}>${label}</option>`)}
      </select>
    </p>
    ${canWriteTitles && html`
      <label class="check"><input type="checkbox" checked=${hasTitles} aria-describedby="titles-help" onChange=${(event) => {
        wantTitles(event.target.checked);
        chooseTitles(event.target.checked);
      }} /> Let the model write the titles of conversations</label>
      <p class="small soft" id="titles-help">Where it writes no short one, as small models often do, the first question stays.</p>`}
  `;
}
