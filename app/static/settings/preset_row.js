// Choosing, saving and deleting presets.

import { useState } from "preact/hooks";
import { html } from "../shell/html.js";
import { problemOf } from "../store/problems.js";

export function PresetRow({ presets, conversation, onUse }) {
  const [chosen, choose] = useState("");
  const [name, setName] = useState("");
  const [problem, setProblem] = useState("");
  const preset = presets.all.find(({ id }) => id === chosen);
  const use = (id) => {
    choose(id);
    const next = presets.all.find((each) => each.id === id);
    setName(next?.name ?? "");
    onUse({ ...next?.settings });
  };
  // Another one may have been chosen by the time the storage has answered.
  const chooseNext = (id) => choose((now) => (now === chosen ? id : now));
  const attempt = async (what, act) => {
    try {
      await act();
      setProblem("");
    } catch (error) {
      setProblem(`The preset was not ${what}. ${problemOf(error).message}`);
    }
  };
  const save = () => attempt("saved", async () => chooseNext(await presets.save(name.trim(), conversation.settings)));
  const remove = () => attempt("deleted", async () => {
    await presets.remove(chosen);
    chooseNext("");
  });
  return html`
    <fieldset class="presets">
      <legend>Presets</legend>
      <p class="preset-row">
        <select aria-label="Preset" value=${chosen} onChange=${(event) => use(event.target.value)}>
          <option value="">The server's defaults</option>
          ${presets.all.map(({ id, name: label }) => html`<option value=${id}>${label}</option>`)}
        </select>
        ${preset && html`<button type="button" class="quiet" onClick=${remove}>Delete</button>`}
      </p>
      <p class="preset-row">
        <input aria-label="Name of the preset" placeholder="Name" maxlength="80" value=${name}
          onInput=${(event) => setName(event.target.value)} />
        <button type="button" class="quiet" disabled=${!name.trim()} onClick=${save}>Save these settings</button>
      </p>
      ${problem && html`<p class="small failure" role="alert">${problem}</p>`}
      <label class="check"><input type="checkbox" checked=${presets.forNew === chosen}
        onChange=${(event) => presets.useForNew(event.target.checked ? chosen : "")} /> Use for new chats</label>
    </fieldset>
  `;
}
