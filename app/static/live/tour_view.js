// The tour in the live view: one stop after the other, each started by a button.

import { useEffect, useRef, useState } from "preact/hooks";
import { RECORDED, Recording, RecordingMissing } from "../engine/recording.js";
import { html } from "../parts/html.js";
import { stopsFor } from "./tour.js";
import { TourEnded, TourGuide } from "./tour_guide.js";

// The tour asks for what others do not need.
const MOST_WAITING = 0;
const MOST_RUNNING = 8;
// Of a model whose server does not tell.
const CONTEXT = 2048;
// By then what was computed last is in the picture.
const LAST_PICTURE_MS = 500;

/**
 * @param {{picture: import("../engine/picture.js").Picture, link: {key: string | null, details: Record<string, any>},
 *   onRecording: (recording: Recording | null) => void, onRecorded: () => void,
 *   onPart: (part: import("./tour.js").Part | null) => void, onHold: (since: number | null) => void, onEnd: () => void}} props
 *   `onRecording` gets a recording that is to be shown in the place of the server, or null at its end; `onRecorded` is called
 *   when it has changed; `onPart` gets what a stop speaks of from when it is shown until it is left, else null;
 *   `onHold` gets the server's time since which the steps are those of a stop that has been shown to its end and is still read, else null
 */
export function Tour({ picture, link, onRecording, onRecorded, onPart, onHold, onEnd }) {
  const stops = stopsFor(picture.latest, link.details.max_model_len ?? CONTEXT);
  const [at, setAt] = useState(0);
  const stop = stops[at];
  const [said, setSaid] = useState("");
  /** What is played. @type {{current: TourGuide | Recording | null}} */
  const player = useRef(null);
  const [isPlaying, setPlaying] = useState(false);
  const [wasShown, setShown] = useState(false);
  /** The server's ids of the answers of the stop. @type {{current: string[]}} */
  const streams = useRef([]);
  /** The server's time when it began. */
  const begun = useRef(0);
  // Until none of its requests is seen any more.
  const isBusy = isPlaying || streams.current.some((id) => picture.find(id));
  const isHeld = wasShown && !isBusy;
  const leave = () => {
    if (player.current instanceof TourGuide) streams.current = player.current.streams;
    player.current?.close();
    player.current = null;
    onRecording(null);
    setPlaying(false);
  };
  useEffect(() => leave, []);
  useEffect(() => {
    onPart(wasShown ? stop.part : null);
    return () => onPart(null);
  }, [wasShown, stop.part]);
  useEffect(() => {
    picture.keepsHues = wasShown;
    onHold(isHeld ? begun.current : null);
    return () => {
      picture.keepsHues = false;
      onHold(null);
    };
  }, [wasShown, isHeld]);
  const go = (next) => {
    leave();
    streams.current = [];
    setSaid("");
    setShown(false);
    setAt(next);
  };
  const run = async (mine, work) => {
    player.current = mine;
    begun.current = picture.time;
    setPlaying(true);
    setShown(true);
    try {
      await work();
    } catch (error) {
      if (!(error instanceof TourEnded || error instanceof RecordingMissing)) throw error;
      // The viewer has gone on meanwhile.
      if (player.current === mine) setSaid(error.message);
    } finally {
      if (player.current === mine) leave();
    }
  };
  const showRecording = () => {
    const recording = new Recording();
    onRecording(recording);
    return run(recording, () => recording.play(onRecorded));
  };
  const show = () => {
    const refusal = stop.play ? refusalOf(picture.latest.figures) : "";
    setSaid(refusal && stop.isRecorded ? `${refusal} This is ${RECORDED}.` : refusal);
    if (stop.isRecorded && (refusal || !stop.play)) return showRecording();
    if (refusal) return undefined;
    const guide = new TourGuide(link.key);
    return run(guide, async () => {
      await guide.welcome;
      await stop.play(guide);
      await guide.rest(LAST_PICTURE_MS);
    });
  };
  return html`
    <section class="live-tour" aria-label="Tour">
      <h3>${stop.title} <span class="soft">${at + 1} of ${stops.length}</span></h3>
      <p>${stop.text}</p>
      <p role="status">${said}</p>
      <div class="live-tour-row">
        ${isBusy
          ? html`<button type="button" class="quiet" onClick=${leave}>Stop</button>`
          : html`<button type="button" class="quiet" onClick=${show}>Show it${wasShown && " again"}</button>`}
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
