// The bar above the conversation: the list, the model, the live view, the theme, settings and a new chat.

import { html } from "../parts/html.js";
import { BlocksIcon, MenuIcon, NewChatIcon, Quire, SettingsIcon } from "../parts/icons.js";
import { cleanSettings } from "../sampling/sampling.js";
import { ThemeButton } from "../settings/theme_button.js";

export function Header({ link, settings, isListOpen, isLiveOpen, onList, onLive, onSettings, onModel, onNewChat }) {
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
        <button type="button" class="quiet icon" aria-label="The engine at work" aria-expanded=${isLiveOpen}
          title="The engine at work (Ctrl + E)" onClick=${onLive}><${BlocksIcon} /></button>
        <${ThemeButton} />
        <${SettingsButton} settings=${cleanSettings(settings)} onClick=${onSettings} />
        <button type="button" class="quiet new-chat" onClick=${onNewChat} title="New chat (Ctrl + Shift + O)">
          <${NewChatIcon} /> <span>New chat</span>
        </button>
      </div>
    </header>
  `;
}

/** With the number of settings that the conversation has of its own. */
function SettingsButton({ settings: { system, ...others }, onClick }) {
  const numOthers = Object.keys(others).length;
  const owned = [system && "a system prompt", numOthers && `${numOthers} ${numOthers === 1 ? "setting" : "settings"}`];
  const words = owned.filter(Boolean).join(" and ");
  return html`
    <button type="button" class="quiet icon" aria-label="Settings" onClick=${onClick}
      data-badge=${words ? numOthers + (system ? 1 : 0) : undefined}
      title=${words ? `Settings: this conversation has ${words} of its own` : "Settings"}><${SettingsIcon} /></button>
  `;
}
