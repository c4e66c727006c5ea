// The button that goes from theme to theme.

import { useReducer } from "preact/hooks";
import { html } from "../parts/html.js";
import { ThemeIcon } from "../parts/icons.js";
import { THEMES, readTheme, setTheme } from "./theme.js";

export function ThemeButton() {
  const [, redraw] = useReducer((count) => count + 1, 0);
  const [theme, name] = THEMES.find(([value]) => value === readTheme()) ?? THEMES[0];
  const turn = () => {
    setTheme(nextOf(theme));
    redraw();
  };
  return html`
    <button type="button" class="quiet icon theme" aria-label=${`Theme: ${name}`} title=${`Theme: ${name}`} onClick=${turn}>
      <${ThemeIcon} theme=${theme} /></button>
  `;
}

/** After the system's theme the one that it is not: a click changes what is seen. */
function nextOf(theme) {
  const [system, light, dark] = THEMES.map(([value]) => value);
  const turns = matchMedia("(prefers-color-scheme: dark)").matches ? [system, light, dark] : [system, dark, light];
  return turns[(turns.indexOf(theme) + 1) % turns.length];
}
