// The live view: the engine's blocks, steps and requests as they change, beside the conversation.

import { useEffect, useMemo, useReducer, useRef, useState } from "preact/hooks";
import { Decoder } from "../engine/decoder.js";
import { Feed } from "../engine/feed.js";
import { Picture } from "../engine/picture.js";
import { html } from "../parts/html.js";
import { EngineFigures } from "./engine_figures.js";
import { HostStrip } from "./host_strip.js";
import { Legend } from "./legend.js";
import { useLooks } from "./looks.js";
import { MapView } from "./map_view.js";
import { Queue } from "./queue.js";
import { showAnswer, useLinks } from "./request_links.js";
import { SpokenTable } from "./spoken_table.js";
import { TimelineView } from "./timeline_view.js";
import { Tour } from "./tour_view.js";

// With reduced motion.
const STILL_MS = 500;
const PHASES = {
  connecting: "Connecting …",
  lost: "The server cannot be reached; it is tried again.",
  starting: "The server is not ready; it is tried again.",
  hidden: "The server answers, but shows no engine (--live-view off), or a proxy is in the way; it is tried again.",
  crowded: "As many pages watch as may; it is tried again.",
  locked: "The server refuses the key of this page. Reload it, and enter another one.",
  refused: "The server refuses this page, which may be older than it is. Reload it.",
};

/** @param {{link: {key: string | null, details: Record<string, any>}, conversation: {messages: any[], besides: (message: any) => any[]}, onClose: () => void}} props */
export function LiveView({ link, conversation, onClose }) {
  const probe = useRef(null);
  const looks = useLooks(probe);
  const draw = useDrawing(looks?.isStill ? STILL_MS : 0);
  const { picture: own, phase } = usePicture(link.key, draw);
  /** What the tour shows in the place of this server. @type {[import("../engine/recording.js").Recording | null, any]} */
  const [recording, setRecording] = useState(null);
  const picture = recording?.picture ?? own;
  const links = useLinks(conversation, own);
  // The request whose blocks are lit: its number, and the server's id of the answer if that is shown.
  const [lit, setLit] = useState(null);
  const blocks = useMemo(() => lit && litBlocks(picture, lit), [lit, picture, picture.time]);
  const choose = (group) => {
    const message = group.id && links.messageOf(group.id);
    setLit((now) => (now?.n === group.n ? null : { n: group.n, stream: message && links.streamOf(message) }));
    if (message) showAnswer(message);
  };
  useAnswerClicks((message) => {
    const stream = links.streamOf(message);
    if (stream) setLit((now) => (now?.stream === stream ? null : { n: picture.find(stream)?.n, stream }));
  });
  useEffect(() => setLit(null), [recording, phase === "open"]);
  const [isTouring, setTouring] = useState(false);
  /** What the tour speaks of. @type {[import("./tour.js").Part | null, any]} */
  const [part, setPart] = useState(null);
  /** The server's time since which the steps are those that it speaks of, once they are over. @type {[number | null, any]} */
  const [since, setSince] = useState(null);
  const onKeyDown = (event) => {
    if (event.key !== "Escape") return;
    // It stops no answer here.
    event.stopPropagation();
    if (lit) setLit(null);
    else onClose();
  };
  return html`
    <section class="live" role=${looks?.isAlone ? "main" : "complementary"} aria-label="The engine at work" data-part=${part}
      data-past=${!recording && phase !== "open"} onKeyDown=${onKeyDown}>
      <div class="live-top">
        <header class="live-head">
          <h2>The engine at work</h2>
          <p class="live-phase" role="status" data-recorded=${recording !== null}>
            ${recording ? "A recording, not this server" : PHASES[phase]}</p>
          <span ref=${probe} hidden></span>
          <button type="button" class="quiet" aria-pressed=${isTouring} onClick=${() => setTouring(!isTouring)}>Tour</button>
          <button type="button" class="quiet icon" aria-label="Close the live view" onClick=${onClose}>×</button>
        </header>
        ${isTouring && own.latest && html`
          <${Tour} picture=${own} link=${link} onRecording=${setRecording} onRecorded=${draw} onPart=${setPart} onHold=${setSince} onEnd=${() => setTouring(false)} />`}
      </div>
      ${looks && picture.latest && html`
        <${Sections} key=${recording ? "recorded" : "own"} picture=${picture} looks=${looks} lit=${lit} blocks=${blocks} part=${part} since=${since} isNear=${isTouring} onChoose=${choose} />`}
    </section>
  `;
}

function Sections({ picture, looks, lit, blocks, part, since, isNear, onChoose }) {
  useShown(part);
  const { latest, steps, groups } = picture;
  const chooseFirst = ({ groups: [first] }) => first && onChoose(first);
  const map = useRef(null);
  const chooseBelow = (n) => {
    onChoose(groups.get(n));
    map.current.scrollIntoView({ block: "nearest" });
  };
  return html`
    <${EngineFigures} figures=${latest.figures} saving=${picture.saving} />
    <section class="live-blocks" aria-label="Blocks">
      <div ref=${map}>
        <${MapView} picture=${picture} looks=${looks} lit=${blocks} isNear=${isNear} onChoose=${chooseFirst} />
      </div>
      <${HostStrip} host=${latest.host} hueOf=${(owner) => picture.hueOf(owner)} />
      <${Legend} blockSize=${latest.block_size} counts=${latest.blocks} hasOthers=${latest.groups.some(({ own }) => !own)} looks=${looks} />
    </section>
    <${TimelineView} steps=${steps} targetMs=${latest.figures.step_target_ms ?? 0} since=${part === "timeline" ? since : null} looks=${looks} />
    <${Queue} groups=${[...groups.values()]} lit=${lit?.n ?? null} isStill=${looks.isStill}
      onChoose=${chooseBelow} />
    <${SpokenTable} picture=${picture} />
  `;
}

/** Keep a part of the view in sight, also when it grows. @param {import("./tour.js").Part | null} part */
function useShown(part) {
  useEffect(() => {
    if (!part) return undefined;
    const element = document.querySelector(`.live-${part}`);
    const observer = new ResizeObserver(() => element.scrollIntoView({ block: "end" }));
    observer.observe(element);
    return () => observer.disconnect();
  }, [part]);
}

/** A function that renders the component again, but only so long after the last time. @param {number} pauseMs */
function useDrawing(pauseMs) {
  const [, show] = useReducer((count) => count + 1, 0);
  const pause = useRef(0);
  pause.current = pauseMs;
  const drawing = useMemo(() => {
    let shownAt = -Infinity;
    /** @type {any} */
    let timer = 0;
    let frame = 0;
    const draw = () => {
      timer = 0;
      shownAt = performance.now();
      frame = requestAnimationFrame(() => show(undefined));
    };
    return {
      draw: () => {
        timer ||= setTimeout(draw, Math.max(0, shownAt + pause.current - performance.now()));
      },
      end: () => {
        clearTimeout(timer);
        cancelAnimationFrame(frame);
      },
    };
  }, []);
  useEffect(() => drawing.end, []);
  return drawing.draw;
}

/** The picture that the server sends. @param {string | null} key @param {() => void} draw called after each change of it */
function usePicture(key, draw) {
  const picture = useMemo(() => new Picture(), []);
  const [phase, setPhase] = useState("connecting");
  useEffect(() => {
    let decoder = new Decoder();
    let isFirst = true;
    const feed = new Feed(key, {
      onMessage: (buffer) => {
        decoder.receive(buffer);
        // Until now the last picture of the connection before is shown.
        if (isFirst) picture.beginAnew();
        isFirst = false;
        picture.receive(decoder, performance.now());
        draw();
      },
      onPhase: (now) => {
        if (now === "connecting") [decoder, isFirst] = [new Decoder(), true];
        setPhase(now);
      },
    });
    return () => feed.close();
  }, [key]);
  return { picture, phase };
}

/** The ids of the blocks of a request, also of one that has ended and left them in the cache; null if there are none. */
function litBlocks(picture, { n, stream }) {
  const blocks = picture.groups.has(n) ? picture.blocksOf(n) : stream ? picture.leftBy(stream) : [];
  return blocks.length ? blocks.sort((a, b) => a - b) : null;
}

/** Call `onAnswer` with the id of the message of an answer that is clicked, but for its buttons and links, and while text is selected. */
function useAnswerClicks(onAnswer) {
  const latest = useRef(onAnswer);
  latest.current = onAnswer;
  useEffect(() => {
    const onClick = ({ target }) => {
      const answer = target.closest?.(".answer[data-message]");
      if (answer && !target.closest("a, button, summary, form") && getSelection().isCollapsed) latest.current(answer.dataset.message);
    };
    document.addEventListener("click", onClick);
    return () => document.removeEventListener("click", onClick);
  }, []);
}
