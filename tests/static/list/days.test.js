import assert from "node:assert/strict";
import test from "node:test";
import { nameOfDay } from "../../../app/static/list/days.js";

process.env.TZ = "America/New_York";
const at = (...parts) => new Date(...parts).getTime();
const NOON = at(2026, 10, 4, 12);

test("the list is divided at midnights of the user's place", () => {
  assert.equal(nameOfDay(at(2026, 10, 4), NOON), "Today");
  assert.equal(nameOfDay(at(2026, 10, 4) - 1, NOON), "Yesterday");
  assert.equal(nameOfDay(at(2026, 10, 3), NOON), "Yesterday");
  assert.equal(nameOfDay(at(2026, 10, 3) - 1, NOON), "Previous 7 days");
  assert.equal(nameOfDay(Date.UTC(2026, 10, 4, 3), NOON), "Yesterday");
});

test("a day may have 25 hours, as the one on which the clocks go back", () => {
  assert.equal(at(2026, 10, 2) - at(2026, 10, 1), 25 * 3600 * 1000);
  assert.equal(nameOfDay(at(2026, 9, 28), NOON), "Previous 7 days");
  assert.equal(nameOfDay(at(2026, 9, 28) - 1, NOON), "October");
});

test("what is older is in its month, with its year unless that is this one", () => {
  assert.equal(nameOfDay(at(2026, 0, 1), NOON), "January");
  assert.equal(nameOfDay(at(2026, 0, 1) - 1, NOON), "December 2025");
  assert.equal(nameOfDay(at(2026, 0, 1) - 1, at(2026, 0, 2)), "Previous 7 days");
});

test("a time of a clock that was wrong is today", () => {
  assert.equal(nameOfDay(at(2027, 0, 1), NOON), "Today");
});
