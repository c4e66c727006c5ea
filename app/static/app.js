// The page: one conversation over one link; it is rendered after every change of either.

import { render } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { Composer, hasKeyboard } from "./composer.js";
import { Conversation } from "./conversation.js";
import { Follower } from "./follower.js";
import { html } from "./html.js";
import { DownIcon, NewChatIcon, Quire } from "./icons.js";
import { Link } from "./link.js";
import { Answer, Question } from "./message.js";
import { Notice } from "./notice.js";
import { makePainter } from "./painter.js";
import { Welcome } from "./welcome.js";

// The figures of an open answer change also without new tokens.
const TICK_MS = 100;

function Header({ link, onNewChat }) {
  return html`
    <header class="bar">
      <h1 class="brand"><${Quire} /> Quire</h1>
      <p class="model" title="The model this server runs">
        <span class="dot" data-phase=${link.phase.name}></span>
        <span class="model-name">${link.model ?? "…"}</span>
      </p>
      <button type="button" class="quiet new-chat" onClick=${onNewChat} title="New chat (Ctrl + Shift + O)">
        <${NewChatIcon} /> <span>New chat</span>
      </button>
    </header>
  `;
}

function Messages({ messages, onRetry, onEdit }) {
  const last = messages.at(-1);
  const hasFailed = ({ state }) => ["failed", "disconnected"].includes(state);
  const canEdit = (message) => hasFailed(message) && !message.text && !message.isReturned;
  return messages.map((message) =>
    message.role === "user"
      ? html`<${Question} key=${message.id} text=${message.text} />`
      : html`<${Answer} key=${message.id} answer=${message} version=${message.version}
          onRetry=${message === last && hasFailed(message) && onRetry}
          onEdit=${canEdit(message) && (() => onEdit(message))} />`,
  );
}

function Page({ conversation, link }) {
  const log = useRef(null);
  const messages = useRef(null);
  const field = useRef(null);
  const follower = useRef(null);
  const [isFollowing, setFollowing] = useState(true);
  const isEmpty = conversation.messages.length === 0;
  const open = conversation.open;

  const focusField = () => hasKeyboard() && field.current.focus({ preventScroll: true });
  const ask = (text) => {
    follower.current.follow();
    conversation.ask(text);
    focusField();
  };
  const retry = () => {
    follower.current.follow();
    conversation.retry();
  };
  const edit = (answer) => {
    conversation.takeBack(answer);
    field.current.focus();
  };
  const stop = () => {
    conversation.stop();
    focusField();
  };
  const startNew = () => {
    conversation.clear();
    follower.current.follow();
    focusField();
  };
  const goToEnd = () => {
    follower.current.follow();
    focusField();
  };

  useLayoutEffect(() => {
    follower.current = new Follower(log.current, messages.current, setFollowing);
  }, []);
  // The welcome is shown from its heading, independently of the previous scroll position.
  useLayoutEffect(() => {
    if (isEmpty) log.current.scrollTop = 0;
  }, [isEmpty]);
  useShortcuts({ stop, startNew });

  const notice = html`<${Notice} phase=${link.phase} onKey=${(key) => link.unlock(key)} />`;
  return html`
    <${Header} link=${link} onNewChat=${startNew} />
    <main class="log" ref=${log} tabindex="0" data-following=${isFollowing}>
      <div class="column" ref=${messages} role="log" aria-live="polite" aria-label="Conversation">
        <${Messages} messages=${conversation.messages} onRetry=${link.isReady && retry} onEdit=${edit} />
      </div>
      ${isEmpty && html`<${Welcome} link=${link} onAsk=${ask}>${notice}<//>`}
    </main>
    <footer class="dock">
      <div class="column">
        ${!isFollowing && html`
          <button type="button" class="round to-end" aria-label="Go to the end" title="Go to the end" onClick=${goToEnd}>
            <${DownIcon} /></button>`}
        ${!isEmpty && notice}
        <${Composer} fieldRef=${field} draft=${conversation.draft} canAsk=${link.isReady || link.isDraining}
          isOpen=${Boolean(open)} onWrite=${(text) => conversation.write(text)} onAsk=${ask} onStop=${stop} />
      </div>
    </footer>
  `;
}

function useShortcuts({ stop, startNew }) {
  const actions = useRef();
  actions.current = { stop, startNew };
  useEffect(() => {
    addEventListener("keydown", (event) => {
      if (event.isComposing) return;
      if (event.key === "Escape") {
        actions.current.stop();
      } else if ((event.ctrlKey || event.metaKey) && event.shiftKey && event.key.toLowerCase() === "o") {
        event.preventDefault();
        actions.current.startNew();
      }
    });
  }, []);
}

function start() {
  const root = document.getElementById("app");
  const draw = makePainter(() => {
    render(html`<${Page} conversation=${conversation} link=${link} />`, root);
    link.show();
  });
  const onPhase = () => {
    if (link.isReady) conversation.resume();
    draw();
  };
  const link = new Link({
    onPhase,
    onFrame: (stream, frame) => conversation.receive(stream, frame),
    onLost: (code) => conversation.lose(code),
  });
  const conversation = new Conversation(link, draw);
  setInterval(() => conversation.open && draw(), TICK_MS);
  // The answer so far is kept over a reload.
  addEventListener("pagehide", () => conversation.stop());
  draw();
  link.run();
}

start();
