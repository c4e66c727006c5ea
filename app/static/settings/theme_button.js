// The button that goes from theme to theme.

import { useReducer } from "preact/hooks";
import { html } from "../parts/html.js";
import { ThemeIcon } from "../parts/icons.js";
import { THEMES, readTheme, setTheme } from "./theme.js";

export function ThemeButton() {
  const [, redraw] = useReducer((count) => count + 1, 0);
  const now = THEMES.findIndex(([theme]) => theme === readTheme());
  const [theme, name] = THEMES[Math.max(now, 0)];
  const [next] = THEMES[(now + 1) % THEMES.length];
  const turn = () => {
    setTheme(next);
    redraw();
  };
  return html`
    <button type="button" class="quiet icon theme" aria-label=${`Theme: ${name}`} title=${`Theme: ${name}`} onClick=${turn}>
      <${ThemeIcon} theme=${theme} /></button>
  `;
}
