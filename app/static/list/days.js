// The parts of the list by the day of the last question, in the time of the user's place.

import { useEffect, useState } from "preact/hooks";

const MONTHS = [
  "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December",
];

/** When the day of a time began, or one that is so many days before. */
function startOfDay(time, numBefore = 0) {
  const day = new Date(time);
  // Days are not all of 24 hours.
  return new Date(day.getFullYear(), day.getMonth(), day.getDate() - numBefore).getTime();
}

/** The name of the part of the list that a time belongs to. @param {number} time @param {number} today any time of it */
export function nameOfDay(time, today) {
  if (time >= startOfDay(today)) return "Today";
  if (time >= startOfDay(today, 1)) return "Yesterday";
  if (time >= startOfDay(today, 7)) return "Previous 7 days";
  const [month, year] = [MONTHS[new Date(time).getMonth()], new Date(time).getFullYear()];
  return year === new Date(today).getFullYear() ? month : `${month} ${year}`;
}

/** When today began; the component is rendered again at midnight. */
export function useToday() {
  const [, setToday] = useState(0);
  const today = startOfDay(Date.now());
  useEffect(() => {
    const look = () => setToday(startOfDay(Date.now()));
    const timer = setTimeout(look, startOfDay(today, -1) - Date.now());
    // The clock of timers may stand still while the computer sleeps.
    addEventListener("visibilitychange", look);
    return () => {
      clearTimeout(timer);
      removeEventListener("visibilitychange", look);
    };
  }, [today]);
  return today;
}
