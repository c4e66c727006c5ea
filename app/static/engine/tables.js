// The block tables of a request as the server sends them: [choice, tokens, [first id, count, first id, count, ...]].

/** @typedef {[number, number, number[]][]} Tables */

/** The ids of all blocks, in the order of the tokens of each sequence. @param {Tables} tables */
export function blocksOf(tables) {
  const ids = [];
  for (const [, , runs] of tables) {
    for (let at = 0; at < runs.length; at += 2) {
      for (let offset = 0; offset < runs[at + 1]; offset++) ids.push(runs[at] + offset);
    }
  }
  return ids;
}

/** The ids of the blocks of one sequence from a place among them on. @param {number[]} runs @param {number} first */
export function blocksFrom(runs, first) {
  const ids = [];
  for (let at = 0, before = 0; at < runs.length; before += runs[at + 1], at += 2) {
    for (let offset = Math.max(0, first - before); offset < runs[at + 1]; offset++) ids.push(runs[at] + offset);
  }
  return ids;
}

/** How many blocks are before one in its sequence, or null if no sequence has it. @param {Tables} tables @param {number} id */
export function positionOf(tables, id) {
  for (const [, , runs] of tables) {
    let before = 0;
    for (let at = 0; at < runs.length; at += 2) {
      if (id >= runs[at] && id < runs[at] + runs[at + 1]) return before + id - runs[at];
      before += runs[at + 1];
    }
  }
  return null;
}
