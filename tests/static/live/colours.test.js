import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";
import { NUM_HUES } from "../../../app/static/engine/hues.js";
import { paletteOf } from "../../../app/static/live/colours.js";

const STATIC = new URL("../../../app/static/", import.meta.url);
const STYLES = ["parts/theme.css", "live/live.css"].map((name) => readFileSync(new URL(name, STATIC), "utf8")).join("\n");
const SCHEMES = ["light", "dark"];

/** Red, green and blue of a variable of the styles, 0 to 1. */
function colour(name, scheme) {
  const [, light, dark] = STYLES.match(new RegExp(`--${name}: light-dark\\((#\\w{6}), (#\\w{6})\\)`));
  return (scheme === "light" ? light : dark).match(/\w\w/g).map((hex) => Number.parseInt(hex, 16) / 255);
}

const linear = (rgb) => rgb.map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
const luminance = (rgb) => linear(rgb).reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);

function contrast(a, b) {
  const [dark, bright] = [luminance(a), luminance(b)].sort((one, other) => one - other);
  return (bright + 0.05) / (dark + 0.05);
}

// Of linear light, as people see it who lack one kind of cones (Machado and others, 2009).
const SIGHTS = {
  usual: [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
  protanopia: [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
  deuteranopia: [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
  tritanopia: [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
};

/** The distance of two colours in OKLab, times 100: 2 is just seen side by side. */
function difference(a, b, sight) {
  const [one, other] = [a, b].map((rgb) => oklab(SIGHTS[sight].map((row) => row.reduce((sum, part, at) => sum + part * linear(rgb)[at], 0))));
  return 100 * Math.hypot(...one.map((part, at) => part - other[at]));
}

function oklab(rgb) {
  const dot = (row, values) => row.reduce((sum, part, at) => sum + part * values[at], 0);
  const cones = [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566], [0.0883024619, 0.2817188376, 0.6299787005]]
    .map((row) => Math.cbrt(Math.max(0, dot(row, rgb))));
  return [[0.2104542553, 0.793617785, -0.0040720468], [1.9779984951, -2.428592205, 0.4505937099], [0.0259040371, 0.7827717662, -0.808675766]]
    .map((row) => dot(row, cones));
}

const hues = (scheme) => Array.from({ length: NUM_HUES + 1 }, (_, hue) => colour(`hue-${hue}`, scheme));

test("every hue has a contrast of 3 to the ground", () => {
  for (const scheme of SCHEMES) {
    for (const name of [...hues(scheme).keys()].map((hue) => `hue-${hue}`).concat("live-faint")) {
      const found = contrast(colour(name, scheme), colour("paper", scheme));
      assert.ok(found >= 3, `${name} ${scheme} ${found.toFixed(2)}`);
    }
  }
});

test("who is colour-blind tells hues apart", () => {
  const close = [];
  for (const scheme of SCHEMES) {
    for (const sight of Object.keys(SIGHTS)) {
      hues(scheme).forEach((hue, at) => hues(scheme).slice(0, at).forEach((other, before) => {
        const found = difference(hue, other, sight);
        if (found < 8) close.push(`${scheme} ${sight} ${before} ${at} ${found.toFixed(1)}`);
      }));
    }
  }
  assert.deepEqual(close, []);
});

test("a colour becomes a pixel with its bytes in the order of a canvas", () => {
  const text = "rgb(1, 2, 3)";
  const palette = paletteOf({ paper: text, free: text, faint: text, ink: "rgb(255, 255, 255)", soft: text, rubric: text, hues: [text] });
  assert.equal(palette.paper, 0xff030201);
  assert.deepEqual([...new Uint8Array(new Uint32Array(palette.deep).buffer)], [115, 116, 116, 255]);
});

test("where there is no room for shapes, cached blocks are told from free ones and from those of others", () => {
  const partsOf = (rgb) => `rgb(${rgb.map((part) => Math.round(255 * part)).join(", ")})`;
  for (const scheme of SCHEMES) {
    const read = (name) => partsOf(colour(name, scheme));
    const { pale } = paletteOf({
      paper: read("paper"), free: read("live-free"), faint: read("live-faint"), ink: read("ink"), soft: read("soft"), rubric: read("rubric"), hues: [read("hue-0")],
    });
    const seen = [...new Uint8Array(new Uint32Array([pale]).buffer)].slice(0, 3).map((part) => part / 255);
    for (const sight of Object.keys(SIGHTS)) {
      for (const name of ["live-free", "hue-0"]) {
        const found = difference(seen, colour(name, scheme), sight);
        assert.ok(found >= 9, `${name} ${scheme} ${sight} ${found.toFixed(1)}`);
      }
    }
  }
});
