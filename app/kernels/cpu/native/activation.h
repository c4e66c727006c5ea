// The functions that the gate of an MLP goes through.
#pragma once

#include "record.h"
#include "simd.h"

namespace quire {

// Calls `body` with the function of vectors that `activation` names.
template <class Body> static inline void with_activation(int32_t activation, Body body) {
  switch (activation) {
    case SILU: return body([](Floats x) { return silu(x); });
    case GELU: return body([](Floats x) { return gelu(x); });
  }
}

}  // namespace quire
