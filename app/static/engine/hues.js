// The colours of requests, as numbers: theme.css has one for each.

/** So many requests can be told apart by colour; the ninth looks like the first one. */
export const NUM_HUES = 8;
/** The hue of all requests of others. */
export const OTHERS = 0;
