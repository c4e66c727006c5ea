// The bar above the conversation: the list, the model, settings and a new chat.

import { useReducer } from "preact/hooks";
import { THEMES, readTheme, setTheme } from "../settings/theme.js";
import { html } from "./html.js";
import { MenuIcon, NewChatIcon, Quire, SettingsIcon, ThemeIcon } from "./icons.js";

export function Header({ link, isListOpen, onList, onSettings, onModel, onNewChat }) {
  return html`
    <header class="bar">
      <div class="bar-start">
        <button type="button" class="quiet icon" aria-label="Conversations" aria-expanded=${isListOpen}
          aria-controls="sidebar" title="Conversations (Ctrl + B)" onClick=${onList}><${MenuIcon} /></button>
        <h1 class="brand"><${Quire} /> <span>Quire</span></h1>
      </div>
      <button type="button" class="model" title="The model this server runs" onClick=${onModel}>
        <span class="dot" data-phase=${link.phase.name}></span>
        <span class="model-name">${link.model ?? "…"}</span>
      </button>
      <div class="bar-end">
        <${ThemeButton} />
        <button type="button" class="quiet icon" aria-label="Settings" title="Settings" onClick=${onSettings}>
          <${SettingsIcon} /></button>
        <button type="button" class="quiet new-chat" onClick=${onNewChat} title="New chat (Ctrl + Shift + O)">
          <${NewChatIcon} /> <span>New chat</span>
        </button>
      </div>
    </header>
  `;
}

/** Goes from theme to theme. */
function ThemeButton() {
  const [, redraw] = useReducer((count) => count + 1, 0);
  const now = THEMES.findIndex(([theme]) => theme === readTheme());
  const [theme, name] = THEMES[Math.max(now, 0)];
  const [next] = THEMES[(now + 1) % THEMES.length];
  const turn = () => {
    setTheme(next);
    redraw();
  };
  return html`
    <button type="button" class="quiet icon" aria-label=${`Theme: ${name}`} title=${`Theme: ${name}`} onClick=${turn}>
      <${ThemeIcon} theme=${theme} /></button>
  `;
}
