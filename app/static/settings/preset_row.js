// Choosing, saving and deleting presets. What is chosen follows from the values: there is nothing to keep in step.

import { useRef, useState } from "preact/hooks";
import { html } from "../parts/html.js";
import { problemOf } from "../store/problems.js";

const DEFAULTS = "The server's defaults";
// Of values that no preset has; ids of presets are longer.
const OWN = "own";

export function PresetRow({ presets, conversation, onUse }) {
  const [preferred, prefer] = useState("");
  const [problem, setProblem] = useState("");
  // The last values that no preset has: they come back if one was chosen by mistake.
  const own = useRef(/** @type {Record<string, any> | null} */ (null));
  const chosen = presets.idOf(conversation.settings, preferred) ?? OWN;
  if (chosen === OWN) own.current = conversation.settings;
  const preset = presets.get(chosen);
  const [name, setName] = useState(preset?.name ?? "");
  const use = (id) => {
    const next = presets.get(id);
    prefer(id);
    setName(next?.name ?? "");
    onUse({ ...(id === OWN ? own.current : next?.settings) });
  };
  const attempt = async (what, act) => {
    try {
      await act();
      setProblem("");
    } catch (error) {
      setProblem(`The preset was not ${what}. ${problemOf(error).message}`);
    }
  };
  const save = () => attempt("saved", async () => prefer(await presets.save(name.trim(), conversation.settings)));
  const remove = () => attempt("deleted", () => presets.remove(chosen));
  return html`
    <fieldset class="presets">
      <legend>Presets</legend>
      <p class="preset-row">
        <select aria-label="Preset" value=${chosen} onChange=${(event) => use(event.target.value)}>
          <option value="">${DEFAULTS}</option>
          ${presets.all.map(({ id, name: label }) => html`<option value=${id}>${label}</option>`)}
          ${own.current && html`<option value=${OWN}>This conversation's own</option>`}
        </select>
        ${preset && html`<button type="button" class="quiet" onClick=${remove}>Delete</button>`}
      </p>
      <p class="preset-row">
        <input aria-label="Name of the preset" placeholder="Name" maxlength="80" value=${name}
          onInput=${(event) => setName(event.target.value)} />
        <button type="button" class="quiet" disabled=${!name.trim()} onClick=${save}>Save these settings</button>
      </p>
      ${problem && html`<p class="small failure" role="alert">${problem}</p>`}
      <${ForNew} presets=${presets} chosen=${chosen} />
    </fieldset>
  `;
}

/** The switch for the preset of new chats, and which one it is. */
function ForNew({ presets, chosen }) {
  const forNew = presets.get(presets.forNew);
  const isOwn = chosen === OWN;
  return html`
    <div>
      <label class="check"><input type="checkbox" checked=${(forNew?.id ?? "") === chosen} disabled=${isOwn}
        aria-describedby="for-new" onChange=${(event) => presets.useForNew(event.target.checked ? chosen : "")} />
        Use for new chats</label>
      <p class="small soft" id="for-new">New chats begin with ${forNew ? html`<bdi>“${forNew.name}”</bdi>` : "the server's defaults"}.
        ${isOwn && " To begin them with these settings, save these first."}</p>
    </div>
  `;
}
