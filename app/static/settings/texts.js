// What stands in the fields of the settings: the settings as text, but where the user has written what is wrong, or not
// complete yet, that. It stays in the tab until it is right or replaced.

import { FIELDS, formatField } from "../sampling/sampling.js";
import { editName } from "../store/edits.js";
import { tabStorage } from "../store/web_storage.js";

const nameOf = (conversation) => editName({ conversation, id: "settings" });

/** The wrong texts by the names of their fields. @param {string} conversation its id @returns {Record<string, string>} */
export const readWrong = (conversation) => JSON.parse(tabStorage.get(nameOf(conversation)) ?? "{}");

/**
 * By the names of the fields.
 * @param {{id: string, settings: Record<string, any>}} conversation
 * @returns {Record<string, string>}
 */
export const textsOf = ({ id, settings }) => ({ ...toTexts(settings), ...readWrong(id) });

const toTexts = (settings) => Object.fromEntries(FIELDS.map(({ name }) => [name, formatField(settings[name])]));

/**
 * Keep the wrong text of a field, or none (null).
 * @param {string} conversation its id
 * @param {string} name of the field
 * @param {string | null} text
 */
export function keepWrong(conversation, name, text) {
  const { [name]: _, ...others } = readWrong(conversation);
  const wrong = text === null ? others : { ...others, [name]: text };
  if (Object.keys(wrong).length) tabStorage.set(nameOf(conversation), JSON.stringify(wrong));
  else tabStorage.remove(nameOf(conversation));
}

/** Keep none, because all settings are replaced. @param {string} conversation its id */
export const forgetWrong = (conversation) => tabStorage.remove(nameOf(conversation));
