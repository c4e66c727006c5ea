// Named settings, stored beside the conversations. One of them may be used for new chats.

import { cleanSettings } from "../sampling/sampling.js";
import { browserStorage } from "../store/web_storage.js";
import { newId } from "../tree/records.js";

const FOR_NEW = "quire.preset";

export class Presets {
  /** @type {{id: string, name: string, settings: Record<string, any>}[]} */
  all = [];
  #library;
  #onChange;

  /**
   * @param {{presets: () => Promise<any>}} library
   * @param {() => void} onChange
   */
  constructor(library, onChange) {
    this.#library = library;
    this.#onChange = onChange;
  }

  /** The id of the preset of new chats, or "". */
  get forNew() {
    return browserStorage.get(FOR_NEW) ?? "";
  }

  /** The settings of a new chat. */
  get newSettings() {
    return { ...this.get(this.forNew)?.settings };
  }

  /** The preset with an id, or undefined. */
  get(id) {
    return this.all.find((preset) => preset.id === id);
  }

  /**
   * The id of the preset that has just these settings, "" for the server's defaults, or undefined.
   * @param {Record<string, any>} settings
   * @param {string} [preferred] the id that is meant, if several presets have them
   */
  idOf(settings, preferred) {
    const isSame = (preset) => JSON.stringify(preset?.settings) === JSON.stringify(cleanSettings(settings));
    if (isSame(this.get(preferred))) return preferred;
    return isSame({ settings: {} }) ? "" : this.all.find(isSame)?.id;
  }

  /** Read them from the storage, which another tab may have changed. */
  async read() {
    const storage = await this.#library.presets();
    const stored = await storage.presets().catch(() => this.all);
    this.all = stored
      .map((preset) => ({ ...preset, settings: cleanSettings(preset.settings) }))
      .sort((a, b) => a.name.localeCompare(b.name));
    this.#onChange();
  }

  /** Keep settings under a name; those of the same name are replaced. */
  async save(name, settings) {
    const id = this.all.find((preset) => preset.name === name)?.id ?? newId();
    await (await this.#library.presets()).writePreset({ id, name, settings });
    await this.read();
    return id;
  }

  /** Remove a preset; conversations keep their settings. */
  async remove(id) {
    await (await this.#library.presets()).removePreset(id);
    if (this.forNew === id) this.useForNew("");
    await this.read();
  }

  /** Begin new chats with a preset, or with the server's defaults (""). */
  useForNew(id) {
    if (id) browserStorage.set(FOR_NEW, id);
    else browserStorage.remove(FOR_NEW);
    this.#onChange();
  }
}
