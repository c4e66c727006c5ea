// Groups of quantized panels whose integers and factors are decoded once, for all rows of a tile.
#pragma once

#include <cstdint>

#include "linear_groups.h"

namespace quire {

// A few groups of a panel, ready to be multiplied. `Form` says what becomes of four columns' bytes: words of 32 bits, of
// which a group has [words][32 lanes], in the order of its columns.
template <class Kind, class Form, int NUM_> struct DecodedGroups {
  static constexpr int NUM = NUM_;
  static constexpr int WORDS = GROUP / 4 * Form::WORDS, WORD_BYTES = PANEL_WIDTH * 4;

  alignas(64) uint8_t words[NUM][WORDS * WORD_BYTES];
  alignas(64) float scales[NUM][Kind::PARTS][PANEL_WIDTH];
  alignas(64) float minimums[NUM][PANEL_WIDTH];

  // Decodes group `index` of the panel at `in.panel` to place `i`.
  void decode(const TileInput &in, int64_t index, int i) {
    const uint8_t *block = in.panel + index / Kind::BLOCK_GROUPS * Kind::BLOCK_BYTES;
    const uint8_t *group = block + Kind::HALVES_BYTES + index % Kind::BLOCK_GROUPS * Kind::GROUP_BYTES;
    for (int j = 0; j < VECTORS_PER_PANEL; j++) {
      decode_words(group + Kind::FACTORS_BYTES + j * LANES * 4, words[i] + j * LANES * 4);
      for (int part = 0; part < Kind::PARTS; part++)
        store(scales[i][part] + j * LANES, factors<Kind>(block, group + part * PANEL_WIDTH, in, j));
      if constexpr (Kind::HAS_MINIMUMS)
        store(minimums[i] + j * LANES, factors<Kind>(block + 2 * PANEL_WIDTH, group + PANEL_WIDTH, in, j));
    }
  }

 private:
  static void decode_words(const uint8_t *lanes, uint8_t *out) {
    UNROLL for (int step = 0; step < GROUP_STEPS; step++) {
      Ints w0, w1;
      unpack<Kind>(lanes, step, w0, w1);
      Form::put(w0, out + 2 * step * Form::WORDS * WORD_BYTES);
      Form::put(w1, out + (2 * step + 1) * Form::WORDS * WORD_BYTES);
    }
  }
};

}  // namespace quire
