// The icons of the page. The logo is a quire seen from its edge: nested folded sheets, sewn through the fold.

import { html } from "./html.js";

export const Icon = ({ children, size = 20, ...rest }) => html`
  <svg viewBox="0 0 24 24" width=${size} height=${size} fill="none" stroke="currentColor" stroke-width="1.7"
    stroke-linecap="round" stroke-linejoin="round" aria-hidden="true" ...${rest}>${children}</svg>
`;

export const Quire = ({ size = 26 }) => html`
  <svg viewBox="0 0 32 32" width=${size} height=${size} fill="none" stroke-linecap="round" stroke-linejoin="round"
    class="mark" aria-hidden="true">
    <path class="sheet" d="M26 4.5C14 5.5 6 9.5 5 16C6 22.5 14 26.5 26 27.5" />
    <path class="sheet" d="M27.5 9.3C18 9.8 12 12 11 16C12 20 18 22.2 27.5 22.7" />
    <path class="sheet" d="M28 13.9C22.5 13.9 17.8 14.7 16.8 16C17.8 17.3 22.5 18.1 28 18.1" />
    <path class="thread" d="M1.7 16H11" />
  </svg>
`;

export const SendIcon = () => html`<${Icon}><path d="M12 19V5M6 11l6-6 6 6" /><//>`;

export const StopIcon = () => html`
  <${Icon}><rect x="7" y="7" width="10" height="10" rx="1.5" fill="currentColor" stroke="none" /><//>
`;

export const AttachIcon = () => html`
  <${Icon}><path d="M19.5 11.5l-7.6 7.6a4.6 4.6 0 0 1-6.5-6.5l8.2-8.2a3 3 0 0 1 4.3 4.3l-8.1 8.1a1.5 1.5 0 0 1-2.1-2.1l7.3-7.3" /><//>
`;

export const NewChatIcon = () => html`
  <${Icon} size="18"><path d="M13 4H6.500A1.5 1.5 0 0 0 5 5.500v13A1.5 1.5 0 0 0 6.5 20h11a1.5 1.5 0 0 0 1.5-1.500V11" />
    <path d="M18.5 3v5M16 5.500h5" /><//>
`;

export const MenuIcon = () => html`<${Icon} size="18"><path d="M4 6.500h16M4 12h16M4 17.500h10" /><//>`;

export const SettingsIcon = () => html`
  <${Icon} size="18"><path d="M4 7h9M17 7h3M4 17h3M11 17h9" /><circle cx="15" cy="7" r="2" /><circle cx="9" cy="17" r="2" /><//>
`;

/** Blocks of memory, some of them taken. */
export const BlocksIcon = () => html`
  <${Icon} size="18"><path d="M4.500 4.500h6v6h-6zM13.500 13.500h6v6h-6z" fill="currentColor" />
    <path d="M13.500 4.500h6v6h-6zM4.500 13.500h6v6h-6z" /><//>
`;

const RAYS = "M12 2.5v2M12 19.5v2M2.5 12h2M19.5 12h2M5.3 5.3l1.4 1.4M17.3 17.3l1.4 1.4M5.3 18.7l1.4-1.4M17.3 6.7l1.4-1.4";

/** A sun, a moon, or for "" half of each. */
export const ThemeIcon = ({ theme }) => html`
  <${Icon} size="18">${{
    light: html`<circle cx="12" cy="12" r="4" /><path d=${RAYS} />`,
    dark: html`<path d="M20 14A8.5 8.5 0 1 1 10 4a7 7 0 0 0 10 10Z" />`,
  }[theme] ?? html`<circle cx="12" cy="12" r="8.5" /><path d="M12 3.5a8.5 8.5 0 0 1 0 17Z" fill="currentColor" />`}<//>
`;
