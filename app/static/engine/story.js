// The story of a block in words.

import { formatDuration } from "../tree/figures.js";
import { OTHERS } from "./hues.js";

/**
 * One sentence about a block.
 * @param {ReturnType<import("./picture.js").Picture["storyOf"]>} story
 * @param {number} blockSize
 */
export function tellStory({ id, state, groups, from, seconds, isOlder }, blockSize) {
  const parts = [`Block ${id} is ${state}`];
  const isOfOne = state === "shared" && groups.length === 1 && groups[0].tables?.length > 1;
  if (groups.length) parts.push(` by ${isOfOne ? "the answers of " : ""}${listOf(groups.map(({ n }) => n))}`);
  if (from !== null) parts.push(`: tokens ${from + 1} to ${from + blockSize}`);
  const time = formatDuration(seconds * 1000);
  const since = isOlder ? `for at least ${time}` : seconds < 0.1 ? "just now" : `for ${time}`;
  return `${parts.join("")}, ${since}.`;
}

function listOf(numbers) {
  const name = numbers.length === 1 ? "request" : "requests";
  if (numbers.length > 4) return `${numbers.length} requests`;
  return `${name} ${numbers.join(", ").replace(/, (?=\d+$)/, " and ")}`;
}

/**
 * One sentence about a step. Of others, whose number is not told, the prompts are in whole blocks.
 * @param {import("./live_types.js").Step} step
 */
export function tellStep({ ms, shares, isOver }) {
  const sum = (name) => shares.reduce((total, share) => total + share[name], 0);
  const counted = (count, one, many) => `${count} ${count === 1 ? one : many}`;
  const unnamed = shares.find(({ n }) => !n);
  const whose = unnamed ? beside(shares.filter(({ hue }) => hue !== OTHERS).length) : counted(shares.length, "request", "requests");
  const parts = [`A step of ${formatDuration(ms)} for ${whose}`];
  const [prompt, decode, accepted] = [sum("prompt"), sum("decode"), sum("accepted")];
  if (prompt) parts.push(`${unnamed?.prompt ? "about " : ""}${counted(prompt, "prompt token", "prompt tokens")} read`);
  if (decode) parts.push(`${counted(decode, "token", "tokens")} written`);
  if (accepted) parts.push(`${counted(accepted, "draft token", "draft tokens")} accepted`);
  return `${parts.join(", ")}${isOver ? "; longer than the target" : ""}.`;
}

/** Whose a step is that is also for others, of whom nobody says how many they are. @param {number} numOwn */
function beside(numOwn) {
  if (!numOwn) return "requests of others";
  return `${numOwn === 1 ? "your request" : `${numOwn} requests of yours`} and those of others`;
}
