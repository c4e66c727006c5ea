// Starts the page: its state, and one rendering after every change of it.

import { render } from "preact";
import { addressedId } from "./conversation/address.js";
import { Desk } from "./conversation/desk.js";
import { html } from "./parts/html.js";
import { Presets } from "./settings/presets.js";
import { applyTheme } from "./settings/theme.js";
import { Page } from "./shell/page.js";
import { makePainter } from "./shell/painter.js";
import { TabTitle } from "./shell/tab_title.js";
import { Library } from "./store/library.js";
import { Link } from "./stream/link.js";
import { Prose } from "./turns/answer_view.js";

// The figures of an open answer change also without new tokens.
const TICK_MS = 100;
// What is missing is tried again when it is needed.
const preload = () => import("./shell/preload.js").catch(() => {});
// How often the tabs are asked whether they still write the open answers of the shown conversation.
const ASK_MS = 3000;

async function start() {
  const root = document.getElementById("app");
  const { draw, drawGrowth } = makePainter({
    paint: () => render(html`<${Page} desk=${desk} library=${library} link=${link} presets=${presets} />`, root),
    paintGrowth: () => desk.current.watchers.forEach((show) => show()),
    onPainted: () => link.show(),
  });
  const tabTitle = new TabTitle();
  const showTitle = () => tabTitle.update(library.get(desk.current.id)?.title ?? "", desk.hasOpen);
  const onChange = () => {
    // Not with the painting, which is late in a hidden tab; and not now, since the desk says so while it is made, too.
    queueMicrotask(showTitle);
    draw();
  };
  const onPhase = () => {
    if (link.isReady) {
      desk.resume();
      // Safari has no such callback.
      (globalThis.requestIdleCallback ?? setTimeout)(preload);
    }
    draw();
  };
  const link = new Link({
    onPhase,
    onFrame: (stream, frame) => desk.receive(stream, frame),
    onLost: (code) => desk.lose(code),
  });
  const library = new Library(onChange, {
    onSaved: (id, removed) => desk.onSaved(id, removed),
    onRemoved: (ids) => desk.onRemoved(ids),
    holds: (id) => desk.holds(id),
  });
  const presets = new Presets(library, draw);
  const desk = new Desk(link, library, { onChange, onGrowth: drawGrowth }, () => presets.newSettings);
  setInterval(() => desk.hasOpen && drawGrowth(), TICK_MS);
  setInterval(() => desk.settle(), ASK_MS);
  // Phones end hidden pages without a word.
  for (const name of ["pagehide", "visibilitychange"]) addEventListener(name, () => desk.keep());
  // Keys of input methods are theirs. Safari's Enter that ends a composition comes behind it, with the code 229.
  const keepFrom = (event) => (event.isComposing || event.keyCode === 229) && event.stopImmediatePropagation();
  addEventListener("keydown", keepFrom, true);
  applyTheme();
  draw();
  // Of no use to the first view; a page that cannot load it shows answers with their marks, and says so.
  const reading = Prose.load().catch(() => {});
  await library.open();
  // What cannot be taken over now is there for the next page.
  await desk.recover().catch(() => {});
  await presets.read();
  // What the user has set stays as it is.
  if (desk.current.isEmpty && !desk.current.isConfigured) desk.current.settings = presets.newSettings;
  // The answers of a stored conversation are not shown with their marks first.
  if (addressedId()) await reading;
  await desk.openAddress();
  // Only now: what is asked earlier would be asked in another conversation, without the settings of new chats.
  link.run();
}

start();
