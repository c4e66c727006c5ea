// The states of a block, as quire.live.v1 numbers them, in the words of the legend.

export const FREE = 0;
export const CACHED = 1;
export const USED = 2;
export const SHARED = 3;
export const PINNED = 4;
export const FENCED = 5;

/** Name and meaning of each state, by its number. */
export const STATES = [
  { name: "free", meaning: "holds nothing" },
  { name: "cached", meaning: "for later requests" },
  { name: "used", meaning: "by one request" },
  { name: "shared", meaning: "by several" },
  { name: "pinned", meaning: "kept for good" },
  { name: "fenced", meaning: "freed after this step" },
];
