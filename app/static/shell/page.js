// The page: the list, the shown conversation, and the field.

import { Fragment } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { isLiveAddressed } from "../conversation/address.js";
import { Composer, Hint } from "../dock/composer.js";
import { useDrop } from "../dock/drop.js";
import { Toast } from "../dock/toast.js";
import { useKeptFocus } from "../parts/focus.js";
import { html } from "../parts/html.js";
import { lazy } from "../parts/lazy.js";
import { Notice } from "../server/notice.js";
import { readWrong } from "../settings/texts.js";
import { Messages } from "../turns/messages.js";
import { makeActions } from "./actions.js";
import { Follower } from "./follower.js";
import { Header } from "./header.js";
import { useShortcuts } from "./shortcuts.js";
import { Welcome } from "./welcome.js";

const Sidebar = lazy((again) => import("../list/sidebar.js" + again), "Sidebar", "list/sidebar.css");
const SettingsPanel = lazy((again) => import("../settings/panel.js" + again), "SettingsPanel", "parts/window.css");
const WrongSettings = lazy((again) => import("../settings/wrong_settings.js" + again), "WrongSettings", "turns/context.css");
const ModelSheet = lazy((again) => import("../server/model_sheet.js" + again), "ModelSheet", "parts/window.css");
const ContextChoice = lazy((again) => import("../dock/context_choice.js" + again), "ContextChoice", "turns/context.css");
const DropOverlay = lazy((again) => import("../dock/drop_overlay.js" + again), "DropOverlay", "parts/parts.css");
const Announcer = lazy((again) => import("../reading/announcer.js" + again), "Announcer");
const ShortcutSheet = lazy((again) => import("./shortcut_sheet.js" + again), "ShortcutSheet", "parts/window.css");
const FoundPlace = lazy((again) => import("./found_place.js" + again), "FoundPlace", "list/sidebar.css");
const ToEnd = lazy((again) => import("../dock/to_end.js" + again), "ToEnd", "parts/parts.css");
const LiveView = lazy((again) => import("../live/view.js" + again), "LiveView", "live/live.css");

const MISSING = "A part of this page could not be loaded. Reload the page when the server can be reached.";

/** Where the list stands beside the conversation, it is open at first if there is something in it. */
const isWide = () => matchMedia("(min-width: 72rem)").matches;

export function Page({ desk, library, link, presets }) {
  const log = useRef(null);
  const messages = useRef(null);
  const floor = useRef(null);
  const field = useRef(null);
  const follower = useRef(null);
  const [isFollowing, setFollowing] = useState(true);
  const [isListOpen, setListOpen] = useState(false);
  const [isLiveOpen, setLiveOpen] = useState(isLiveAddressed);
  const [numSearches, setNumSearches] = useState(0);
  const [sheet, setSheet] = useState(null);
  const [toast, setToast] = useState(null);
  const [place, setPlace] = useState(null);
  const conversation = desk.current;
  const isEmpty = conversation.messages.length === 0;
  // A key comes first: in a small window the live view would cover the form for it.
  const isLiveShown = isLiveOpen && link.phase.name !== "locked";
  const show = (name) => setSheet({ name });
  // The browser reports later that a sheet was closed: another may be open by then, or the same again.
  const closeSheet = () => setSheet((now) => (now === sheet ? null : now));
  const say = (text, action, run) => setToast({ text, action, run });
  const toggleLive = () => {
    if (isLiveAddressed()) history.replaceState(null, "", location.pathname);
    // It would be behind it.
    if (!isLiveOpen) actions.closeDrawer();
    setLiveOpen(!isLiveOpen);
  };
  const closing = { onClose: closeSheet, onMissing: closeSheet };
  const parts = { desk, library, field, follower, isListOpen, setListOpen, setPlace, say };
  const latest = useRef(parts);
  latest.current = parts;
  const actions = useMemo(() => makeActions(latest), []);

  useLayoutEffect(() => {
    follower.current = new Follower(log.current, messages.current, floor.current, setFollowing);
  }, []);
  useEffect(() => {
    const onMissing = () => say(MISSING);
    addEventListener("partmissing", onMissing);
    return () => removeEventListener("partmissing", onMissing);
  }, []);
  useKeptFocus(document.body, actions.focusField);
  // In the same task as the rendering that ends `aria-busy`: nobody meets a list that is still about to open.
  useLayoutEffect(() => {
    if (library.isOpen && isWide() && library.list.length) setListOpen(true);
  }, [library.isOpen]);
  // The welcome is shown from its heading, a conversation from its end.
  useLayoutEffect(() => {
    if (isEmpty) log.current.scrollTop = 0;
    else follower.current.follow();
  }, [isEmpty, conversation]);
  // A conversation that is shown again is not scrolled to where words were found in it before.
  useLayoutEffect(() => {
    setPlace((now) => (now?.conversation === conversation.id ? now : null));
  }, [conversation]);
  useShortcuts({
    stop: actions.stop,
    startNew: actions.startNew,
    help: () => show("shortcuts"),
    toggleList: actions.toggleList,
    toggleLive,
    type: actions.type,
    search: () => {
      setListOpen(true);
      setNumSearches(numSearches + 1);
    },
  });
  const isDropping = useDrop(actions.attach);

  const notice = html`<${Notice} phase=${link.phase} onKey=${(key) => link.unlock(key)} />`;
  return html`
    <${Header} link=${link} settings=${conversation.settings} isListOpen=${isListOpen} onList=${actions.toggleList}
      isLiveOpen=${isLiveShown} onLive=${toggleLive}
      onModel=${() => show("model")} onSettings=${() => show("settings")} onNewChat=${actions.startNew} />
    <div class="body" data-list=${isListOpen} data-live=${isLiveShown} aria-busy=${!library.isOpen}>
      ${isListOpen && html`
        <${Sidebar} library=${library} desk=${desk} actions=${actions} say=${say} numSearches=${numSearches}
          onMissing=${() => setListOpen(false)} />`}
      <div class="content">
        <main class="log" ref=${log} tabindex="0" data-following=${isFollowing}>
          <div class="column" ref=${messages} role="log" aria-live="off" aria-label="Conversation">
            <${Messages} conversation=${conversation} model=${link.model} actions=${actions} canAsk=${link.isReady} />
          </div>
          <div class="floor" ref=${floor}></div>
          ${place?.conversation === conversation.id && html`<${FoundPlace} place=${place} follower=${follower.current} />`}
          ${isEmpty && html`<${Welcome} link=${link} onAsk=${actions.ask}>${notice}<//>`}
        </main>
        <footer class="dock">
          <div class="column">
            <${Toast} message=${toast} onEnd=${() => setToast(null)} />
            ${!isFollowing && !isEmpty && html`<${ToEnd} onClick=${actions.goToEnd} />`}
            ${!isEmpty && notice}
            ${library.problem && !isListOpen && html`<p class="notice storage" role="alert">${library.problem}</p>`}
            ${!isEmpty && !conversation.open && html`
              <${ContextChoice} conversation=${conversation} link=${link} actions=${actions} />`}
            ${Object.keys(readWrong(conversation.id)).length > 0 && html`
              <${WrongSettings} conversation=${conversation} onSettings=${() => show("settings")} />`}
            <${Composer} fieldRef=${field} conversation=${conversation} canAsk=${link.isReady || link.isDraining}
              actions=${actions} />
            <${Hint} conversation=${conversation} link=${link} onHelp=${() => show("shortcuts")} />
          </div>
        </footer>
        ${isDropping && html`<${DropOverlay} />`}
      </div>
      ${isLiveShown && html`
        <${LiveView} link=${link} conversation=${conversation} onClose=${() => setLiveOpen(false)}
          onMissing=${() => setLiveOpen(false)} />`}
    </div>
    ${!isEmpty && html`<${Announcer} key=${conversation.id} answer=${conversation.open} />`}
    <${Fragment} key=${sheet}>
      ${sheet?.name === "shortcuts" && html`<${ShortcutSheet} ...${closing} />`}
      ${sheet?.name === "model" && html`
        <${ModelSheet} link=${link} conversation=${conversation} ...${closing} />`}
      ${sheet?.name === "settings" && html`
        <${SettingsPanel} key=${conversation.id} conversation=${conversation} presets=${presets}
          link=${link} ...${closing} />`}
    <//>
  `;
}
