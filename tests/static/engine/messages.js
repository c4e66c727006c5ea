// Messages of quire.live.v1 for tests.

/** Seven bits in each byte, the lowest first. */
export function varint(value) {
  const bytes = [];
  for (; value > 127; value = Math.floor(value / 128)) bytes.push((value & 127) | 128);
  return [...bytes, value];
}

/** A message with a JSON part and the bytes of blocks. @returns {ArrayBuffer} */
export function message(kind, number, state, bytes) {
  const json = new TextEncoder().encode(JSON.stringify(state));
  const buffer = new ArrayBuffer(9 + json.length + bytes.length);
  const head = new DataView(buffer);
  head.setUint8(0, kind);
  head.setUint32(1, number, true);
  head.setUint32(5, json.length, true);
  new Uint8Array(buffer).set(json, 9);
  new Uint8Array(buffer).set(bytes, 9 + json.length);
  return buffer;
}

/** A JSON part of `count` blocks. @param {number} count */
export const stateOf = (count, fields = {}) =>
  ({ time: 0, view: "all", block_size: 16, num_blocks: count, blocks: {}, host: { total: 0, used: 0, owners: [] }, groups: [], records: [], lost: 0, figures: {}, ...fields });

/** An own request. */
export const groupOf = (n, tables, fields = {}) => ({
  n, own: true, state: "running", rows: tables.length, blocks: 0, preemptions: 0, swaps: 0, id: `chatcmpl-${n}`, prompt: 20, cached: 0,
  computed: 20, output: 0, limit: 100, tables, ...fields,
});
