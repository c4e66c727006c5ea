// The tour in the live view: one stop after the other, each started by a button.

import { useEffect, useRef, useState } from "preact/hooks";
import { html } from "../parts/html.js";
import { answerTokens, stopsFor } from "./tour.js";
import { TourEnded, TourGuide } from "./tour_guide.js";

// The tour asks for what others do not need.
const MOST_WAITING = 0;
const MOST_RUNNING = 8;
// Of a model whose server does not tell.
const CONTEXT = 2048;

/** @param {{picture: import("../engine/picture.js").Picture, link: {key: string | null, details: Record<string, any>}, onEnd: () => void}} props */
export function Tour({ picture, link, onEnd }) {
  const { latest } = picture;
  const stops = stopsFor(latest.num_blocks, answerTokens(latest, link.details.max_model_len ?? CONTEXT));
  const [at, setAt] = useState(0);
  const [said, setSaid] = useState("");
  /** @type {{current: TourGuide | null}} */
  const guide = useRef(null);
  const [isPlaying, setPlaying] = useState(false);
  const leave = () => {
    guide.current?.close();
    guide.current = null;
    setPlaying(false);
  };
  useEffect(() => leave, []);
  const go = (next) => {
    leave();
    setSaid("");
    setAt(next);
  };
  const play = async () => {
    const refusal = refusalOf(picture.latest.figures);
    setSaid(refusal);
    if (refusal) return;
    const mine = new TourGuide(link.key);
    guide.current = mine;
    setPlaying(true);
    try {
      await mine.welcome;
      await stops[at].play(mine);
    } catch (error) {
      if (!(error instanceof TourEnded)) throw error;
      // The viewer has gone on meanwhile.
      if (guide.current === mine) setSaid(error.message);
    } finally {
      if (guide.current === mine) leave();
    }
  };
  const stop = stops[at];
  return html`
    <section class="live-tour" aria-label="Tour">
      <h3>${stop.title} <span class="soft">${at + 1} of ${stops.length}</span></h3>
      <p>${stop.text}</p>
      <p role="status">${said}</p>
      <div class="live-tour-row">
        ${stop.play && (isPlaying
          ? html`<button type="button" class="quiet" onClick=${leave}>Stop</button>`
          : html`<button type="button" class="quiet" onClick=${play}>Show it</button>`)}
        <button type="button" class="quiet" disabled=${at === 0} onClick=${() => go(at - 1)}>Back</button>
        ${at + 1 < stops.length
          ? html`<button type="button" class="quiet" onClick=${() => go(at + 1)}>Next</button>`
          : html`<button type="button" class="quiet" onClick=${onEnd}>End</button>`}
      </div>
    </section>
  `;
}

/** Why the tour asks for nothing now, or "". @param {import("../engine/live_types.js").Figures} figures */
function refusalOf({ waiting, running }) {
  if (waiting <= MOST_WAITING && running <= MOST_RUNNING) return "";
  return `The server has work to do: ${running} requests run, ${waiting} wait. Look at theirs, or try again when there are fewer.`;
}
