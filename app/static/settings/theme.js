// Light, dark, or as the system.

import { browserStorage } from "../store/web_storage.js";

const NAME = "quire.theme";
// As in index.html, which has one for each of the system's schemes.
const BARS = { light: "#faf7f1", dark: "#181613" };

/** The themes and their names. */
export const THEMES = [["", "as the system"], ["light", "light"], ["dark", "dark"]];

export const readTheme = () => browserStorage.get(NAME) ?? "";

/** Choose a theme; "" follows the system. */
export function setTheme(theme) {
  if (theme) browserStorage.set(NAME, theme);
  else browserStorage.remove(NAME);
  applyTheme();
}

/** Show the chosen theme, also in the browser's own bars. */
export function applyTheme() {
  const theme = readTheme();
  document.documentElement.dataset.theme = theme;
  for (const scheme of ["light", "dark"]) {
    document.querySelector(`meta[media*=${scheme}]`)?.setAttribute("content", BARS[theme] ?? BARS[scheme]);
  }
}
