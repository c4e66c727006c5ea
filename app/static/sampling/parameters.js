// What /openapi.json says about the fields of a chat that the page has settings for. Made by `make docs` from
// app/contract/sampling_params.py; do not edit.

/** @type {Record<string, import("./field_types.js").Parameter>} */
export const PARAMETERS = {
  temperature: {"description": "Sampling temperature; 0 always takes the most likely token, higher values vary more.", "type": "number", "minimum": 0.0, "maximum": 2.0},
  top_p: {"description": "Sample from the most likely tokens that together have this probability; 0 is greedy, 1 allows all.", "type": "number", "minimum": 0.0, "maximum": 1.0},
  top_k: {"description": "Sample from this many most likely tokens; 0 or -1 allows all.", "type": "integer", "minimum": -1, "maximum": 2147483647},
  min_p: {"description": "Exclude tokens below this fraction of the most likely token's probability; 0 allows all.", "type": "number", "minimum": 0.0, "maximum": 1.0},
  repetition_penalty: {"description": "Above 1, tokens that occur in the prompt or the output become less likely.", "type": "number", "minimum": 0.01, "maximum": 10.0},
  presence_penalty: {"description": "Above 0, tokens that occur in the output become less likely.", "type": "number", "minimum": -2.0, "maximum": 2.0},
  frequency_penalty: {"description": "Above 0, tokens become less likely with each occurrence in the output.", "type": "number", "minimum": -2.0, "maximum": 2.0},
  seed: {"description": "Seed of the sampling: the same seed, parameters and prompt give the same output.", "type": "integer", "minimum": -9223372036854775808, "maximum": 18446744073709551615},
  max_tokens: {"description": "Maximum number of output tokens.", "type": "integer", "minimum": 1, "maximum": 9223372036854775807},
  stop: {"description": "Texts that end the output and are not part of it.", "type": "array", "maxItems": 16, "maxLength": 256},
};
