// The live view as tables, for screen readers.

import { useEffect, useState } from "preact/hooks";
import { STATES } from "../engine/states.js";
import { html } from "../parts/html.js";

const EVERY_MS = 2000;

/** @param {{picture: import("../engine/picture.js").Picture}} props */
export function SpokenTable({ picture }) {
  const [latest, setLatest] = useState(picture.latest);
  useEffect(() => {
    const timer = setInterval(() => setLatest(picture.latest), EVERY_MS);
    return () => clearInterval(timer);
  }, [picture]);
  return html`
    <div class="unseen">
      <table>
        <caption>Blocks by state</caption>
        <tbody>${STATES.map(({ name }) => html`<tr><th scope="row">${name}</th><td>${latest.blocks[name]}</td></tr>`)}</tbody>
      </table>
      <table>
        <caption>Requests</caption>
        <thead><tr><th scope="col">Number</th><th scope="col">State</th><th scope="col">Blocks</th></tr></thead>
        <tbody>${latest.groups.map(({ n, state, blocks }) => html`<tr><th scope="row">${n}</th><td>${state}</td><td>${blocks}</td></tr>`)}</tbody>
      </table>
    </div>
  `;
}
