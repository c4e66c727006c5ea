// The timeline on a canvas: one column for each step, as high as it was long, in the colours of those it worked for.
// A few long steps would make all others too low to be read: they go beyond the scale, with an arrow and their time.

import { formatDuration } from "../tree/figures.js";

const COLUMN_PX = 7;
const GAP_PX = 1;
const LEGIBLE_PX = 3;
// A step goes beyond the scale if it is so many times as long as the one that this share of the steps does not exceed.
const SCALE = { share: 0.95, factor: 3 };
// From near, where columns of decoding steps are to be seen beside those that read a prompt.
const NEAR_SCALE = { share: 0.5, factor: 5 };
// Of each request, where a column has room for it.
const LEAST_PART_PX = 5;
// Room for the names of the lines, at the left.
const LABELS_PX = 48;
// Room above the highest column: for the marks of accepted draft tokens, and for the arrows and times of longer steps.
const TOP_PX = 12;
const ARROW_PX = 4;
// Of the time of a step that goes beyond the scale.
const BASE_PX = 9;
const LABEL_FONT = "11px system-ui, sans-serif";
// From the middle of a name to the line that it is written on, and from there to what reaches below it.
const ASCENT_PX = 3.5;
const DESCENT_PX = 3;

export class Timeline {
  #canvas;
  #scale = 1;
  #size = { width: 0, height: 0 };

  /** @param {HTMLCanvasElement} canvas */
  constructor(canvas) {
    this.#canvas = canvas;
  }

  /** @param {{width: number, height: number}} room in CSS pixels @param {number} scale pixels of the screen in a CSS pixel */
  fit(room, scale) {
    this.#size = room;
    this.#scale = scale;
    this.#canvas.width = Math.max(1, Math.round(room.width * scale));
    this.#canvas.height = Math.max(1, Math.round(room.height * scale));
  }

  /** How many steps there is room for. */
  get numColumns() {
    return Math.max(1, Math.floor((this.#size.width - LABELS_PX) / COLUMN_PX));
  }

  /** How many steps before the newest one the column at a point is, or the nearest to it. @param {number} x in CSS pixels */
  ageAt(x) {
    return Math.min(Math.floor((this.#size.width - x) / COLUMN_PX), this.numColumns - 1);
  }

  /**
   * Paint the newest steps, the last one at the right.
   * @param {import("../engine/picture.js").Step[]} steps
   * @param {number} targetMs how long a step may be; 0 if there is no limit
   * @param {import("./colours.js").Colours} colours
   * @param {number} looked the age of the step that is looked at, or -1
   * @param {boolean} isNear whether the scale is of the usual steps, not of nearly all
   */
  paint(steps, targetMs, colours, looked, isNear) {
    const context = this.#canvas.getContext("2d");
    const { width, height } = this.#size;
    context.setTransform(this.#scale, 0, 0, this.#scale, 0, 0);
    context.clearRect(0, 0, width, height);
    const shown = steps.slice(-this.numColumns).reverse();
    const topMs = topOf(shown.map(({ ms }) => ms), isNear);
    const perMs = (height - TOP_PX) / topMs;
    const xOf = (age) => width - (age + 1) * COLUMN_PX;
    shown.forEach((step, age) => {
      const x = xOf(age);
      if (age === looked) fill(context, colours.free, x - 1, 0, COLUMN_PX + 1, height);
      paintStep(context, step, colours, { x, bottom: height, height: Math.max(1, Math.min(step.ms, topMs) * perMs) });
    });
    paintBeyond(context, shown.flatMap(({ ms }, age) => (ms > topMs ? [{ ms, x: xOf(age) }] : [])), colours);
    const paintLevel = (ms, dashes, label) => paintLine(context, height - ms * perMs, { width, height }, colours, dashes, label);
    if (shown.length) paintLevel(topMs, [1, 3], topMs < 1000 ? `${topMs} ms` : `${topMs / 1000} s`);
    if (targetMs && targetMs < topMs) paintLevel(targetMs, [4, 3], "target");
  }
}

/** How long a step is that is as high as the scale. @param {number[]} times @param {boolean} isNear */
export function topOf(times, isNear) {
  const { share, factor } = isNear ? NEAR_SCALE : SCALE;
  const usual = times.toSorted((a, b) => a - b)[Math.floor(share * (times.length - 1))] ?? 0;
  return roundUp(Math.max(1, ...times.filter((ms) => ms <= factor * usual)));
}

/** The next of 1, 2, 5, 10, 20 and so on: the scale stays the same for a while. */
function roundUp(ms) {
  const decade = 10 ** Math.floor(Math.log10(ms));
  return [1, 2, 5, 10].map((step) => step * decade).find((step) => step >= ms);
}

/** Across the timeline, with its name before it: also of a line at the foot all of the name is in sight. */
function paintLine(context, at, { width, height }, { soft }, dashes, label) {
  const y = Math.round(at) + 0.5;
  context.font = LABEL_FONT;
  const labelWidth = context.measureText(label).width + 6;
  context.strokeStyle = context.fillStyle = soft;
  context.fillText(label, 0, Math.min(y + ASCENT_PX, height - DESCENT_PX));
  context.setLineDash(dashes);
  context.beginPath();
  context.moveTo(labelWidth, y);
  context.lineTo(width, y);
  context.stroke();
  context.setLineDash([]);
}

/**
 * Above the columns of steps that go beyond the scale an arrow, and beside it the time, if no other arrow is there.
 * @param {{ms: number, x: number}[]} steps from right to left
 */
function paintBeyond(context, steps, { soft }) {
  const side = COLUMN_PX - GAP_PX;
  context.font = LABEL_FONT;
  context.fillStyle = soft;
  steps.forEach(({ ms, x }, at) => {
    context.beginPath();
    context.moveTo(x, ARROW_PX);
    context.lineTo(x + side / 2, 0);
    context.lineTo(x + side, ARROW_PX);
    context.fill();
    const label = formatDuration(ms);
    const left = x - context.measureText(label).width - 2;
    const before = steps[at + 1];
    if (left >= (before ? before.x + COLUMN_PX : 0)) context.fillText(label, left, BASE_PX);
  });
}

/** Each request has a part of the column: of tokens, but by their roots, since one chunk has more than all others decode. */
function paintStep(context, { shares, isOver }, colours, { x, bottom, height }) {
  const side = COLUMN_PX - GAP_PX;
  const weights = shares.map(({ prompt, decode }) => Math.sqrt(prompt + decode));
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  const least = Math.min(LEAST_PART_PX, height / shares.length);
  let y = bottom;
  if (!total) fill(context, colours.faint, x, bottom - height, side, height);
  shares.forEach(({ hue, prompt }, at) => {
    const part = least + ((height - least * shares.length) * weights[at]) / total;
    y -= part;
    fill(context, colours.hues[hue], x, y, side, part);
    if (prompt) paintLines(context, colours.paper, x, y, side, part);
  });
  if (isOver) fill(context, colours.rubric, x, bottom - height - 3, side, 2);
  if (shares.some(({ accepted }) => accepted)) paintDot(context, colours.ink, x + side / 2, bottom - height - 5);
}

/** The lines of a page: a prompt is being read. */
function paintLines(context, colour, x, y, width, height) {
  if (height < LEGIBLE_PX) return;
  for (let line = y + 1; line < y + height - 0.5; line += 3) fill(context, colour, x + 1, line, width - 2, 1);
}

function paintDot(context, colour, x, y) {
  context.fillStyle = colour;
  context.beginPath();
  context.arc(x, y, 1.5, 0, 2 * Math.PI);
  context.fill();
}

function fill(context, colour, x, y, width, height) {
  context.fillStyle = colour;
  context.fillRect(x, y, width, height);
}
