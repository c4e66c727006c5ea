// What prevents the model from going on with an answer.

const CALLS = "Calls of tools cannot be continued; answer again instead.";
const JSON_OF_SCHEMA = "JSON of a schema cannot be continued; answer again instead, with more Max tokens if it needs them.";

/**
 * Why the server would not go on where an answer ends, in words, or "".
 * @param {any} answer
 * @param {Record<string, any>} settings that the rest would be asked for with
 * @param {string | null} served the model that would write the rest; null: not known
 */
export function obstacleOf({ tools, model }, settings, served) {
  if (tools?.length) return CALLS;
  if (model && served && model !== served) return `${model} wrote this, and the server runs ${served} now; answer again instead.`;
  // The server's grammar would begin anew.
  return settings.json_schema ? JSON_OF_SCHEMA : "";
}
