// Light, dark, or as the system.

import { browserStorage } from "../store/web_storage.js";

const NAME = "quire.theme";

export const readTheme = () => browserStorage.get(NAME) ?? "";

/** Choose a theme; "" follows the system. */
export function setTheme(theme) {
  if (theme) browserStorage.set(NAME, theme);
  else browserStorage.remove(NAME);
  applyTheme();
}

/** Show the chosen theme. */
export function applyTheme() {
  document.documentElement.dataset.theme = readTheme();
}
