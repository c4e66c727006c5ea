// Operations on whole rows: embedding, norm, addition, gathering, quantization, gated activation, capping.
//
// Rows are shared out among the threads; a row is computed from left to right by one of them.
#include <algorithm>

#include "activation.h"
#include "panels.h"
#include "record.h"
#include "simd.h"

namespace quire {
namespace {

// Calls `body(row)` for each row that this thread takes; claiming costs nothing beside STRETCH values.
template <class Body> void each_row(Worker worker, int64_t num_rows, int64_t width, Body body) {
  constexpr int64_t STRETCH = 4096;
  worker.each(num_rows, std::max<int64_t>(1, STRETCH / width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++) body(row);
  });
}

template <class T> T *row_of(const Matrix &m, int64_t row) { return static_cast<T *>(m.data) + row * m.stride; }

// Calls `body` with a value of the C++ type that `type` names; activations and tables have no others.
template <class Body> void with_type(int32_t type, Body body) {
  switch (type) {
    case FLOAT32: return body(float{});
    case FLOAT16: return body(f16{});
    case BFLOAT16: return body(bf16{});
  }
}

// Calls `body(first, lanes)` for each vector of a row; the last one may have fewer lanes.
template <class Body> void each_vector(int64_t width, Body body) {
  int64_t k = 0;
  for (; k + LANES <= width; k += LANES) body(k, LANES);
  if (k < width) body(k, static_cast<int>(width - k));
}

template <class T> Floats take(const T *p, int lanes) { return lanes == LANES ? load(p) : load_part(p, lanes); }
template <class T> void put(T *p, Floats v, int lanes) { lanes == LANES ? store(p, v) : store_part(p, v, lanes); }

// The largest integers of quantized activations, by the number of their planes. The bytes of the second one are 127 and
// 127: the lower byte has a sign too.
constexpr float LARGEST[] = {127.0f, 32639.0f};

// Quantizes the row whose vectors `value` gives. A group that is not finite gets a scale that is no number, and so does
// its sum.
template <class Value> void quantize_row(const Quantized &q, int64_t row, int64_t width, Value value) {
  constexpr int VECTORS = GROUP / LANES;
  auto *out = reinterpret_cast<uint8_t *>(q.data) + row * q.stride;
  for (int64_t g = 0; g < q.num_groups; g++, out += q.num_planes * GROUP) {
    Floats x[VECTORS], most = zeros(), broken = zeros();
    for (int i = 0; i < VECTORS; i++) {
      const int64_t k = g * GROUP + i * LANES, left = width - k;
      x[i] = left >= LANES ? value(k, LANES) : left > 0 ? value(k, static_cast<int>(left)) : zeros();
      most = max(abs(x[i]), most), broken = fma(x[i], zeros(), broken);
    }
    const float scale = std::fmax(largest(most), 1e-12f) / LARGEST[q.num_planes - 1];
    const Floats inverse = all(1.0f / scale), limit = all(LARGEST[q.num_planes - 1]);
    Ints total = int_zeros();
    int32_t first = 0;
    for (int i = 0; i < VECTORS; i++) {
      // What is not finite becomes some number within the limits: its scale is none.
      const Ints integers = to_ints(min(max(x[i] * inverse, zeros() - limit), limit));
      if (q.num_planes == 2) store_bytes(out + i * LANES, shift_right(quire::add(integers, all_ints(128)), 8));
      store_bytes(out + (q.num_planes - 1) * GROUP + i * LANES, integers);
      total = quire::add(total, integers);
      if (i + 1 == VECTORS / 2) first = sum_ints(total);
    }
    const int32_t whole = sum_ints(total);
    const float checked = scale + sum(broken);
    q.groups[row * q.num_groups + g] = {checked, checked * static_cast<float>(whole), -whole, -first};
  }
}

// Decodes a row of quantized panels that are not interleaved, times `scale`.
template <class Kind, class Out> void unpack_row(const Packed &w, int64_t r, float scale, Out *out) {
  const int64_t num_groups = divide_up(w.k, GROUP), num_blocks = divide_up(num_groups, Kind::BLOCK_GROUPS);
  const int64_t row = r % PANEL_WIDTH;
  const uint8_t *block = static_cast<const uint8_t *>(w.panels) + r / PANEL_WIDTH * num_blocks * Kind::BLOCK_BYTES;
  for (int64_t k = 0; k < w.k; block += Kind::BLOCK_BYTES) {
    const auto factor = [&](int index, const uint8_t *bytes) {
      const float half = to_float(reinterpret_cast<const f16 *>(block)[index * PANEL_WIDTH + row]);
      return Kind::HAS_BYTES ? half * static_cast<float>(reinterpret_cast<const typename Kind::Byte *>(bytes)[row]) : half;
    };
    const uint8_t *group = block + Kind::HALVES_BYTES;
    for (int i = 0; i < Kind::BLOCK_GROUPS && k < w.k; i++, group += Kind::GROUP_BYTES) {
      uint8_t integers[GROUP];
      unpack_group<Kind>(group + Kind::FACTORS_BYTES, row, integers);
      for (int first = 0; first < GROUP && k < w.k; first += LANES, k += LANES) {
        const int part = first * Kind::PARTS / GROUP;
        const Floats factor_of_part = all(factor(0, group + part * PANEL_WIDTH));
        Floats v = to_floats(load_lanes(integers + first));
        if (Kind::HAS_MINIMUMS) v = fma(v, factor_of_part, all(factor(1, group + PANEL_WIDTH)));
        else v = (v - all(1 << Kind::ZERO_SHIFT)) * factor_of_part;
        put(out + k, v * all(scale), static_cast<int>(std::min<int64_t>(w.k - k, LANES)));
      }
    }
  }
}

template <class T, class Out> void embed_row(const Embed &e, int64_t id, Out *out) {
  if (e.table.data != nullptr) {
    const T *row = row_of<T>(e.table, id);
    const Floats scale = all(e.scale);
    return each_vector(e.width, [&](int64_t k, int lanes) { put(out + k, take(row + k, lanes) * scale, lanes); });
  }
  for (int64_t k = 0; k < e.width; k++) assign(out[k], e.scale * panel_element<T>(e.packed.panels, e.packed.k, id, k));
}

// Writes the values that `value` gives. Integers come first: `value` may read what is written to `out`.
template <class Value> void put_row(const Norm &n, int64_t row, Value value) {
  if (n.quantized.num_groups > 0) quantize_row(n.quantized, row, n.width, value);
  with_type(n.out.type, [&](auto type) {
    auto *out = row_of<decltype(type)>(n.out, row);
    each_vector(n.width, [&](int64_t k, int lanes) { put(out + k, value(k, lanes), lanes); });
  });
}

template <class In> void norm_row(const Norm &n, int64_t row) {
  const In *x = row_of<In>(n.x, row);
  if (n.weight == nullptr) return put_row(n, row, [&](int64_t k, int lanes) { return take(x + k, lanes); });
  Floats squares[2] = {zeros(), zeros()};
  each_vector(n.width, [&](int64_t k, int lanes) {
    const Floats v = take(x + k, lanes);
    Floats &total = squares[k / LANES % 2];
    total = fma(v, v, total);
  });
  const float mean = sum(squares[0] + squares[1]) / static_cast<float>(n.width);
  const Floats scale = all(1.0f / std::sqrt(mean + n.eps));
  put_row(n, row, [&](int64_t k, int lanes) { return take(x + k, lanes) * scale * take(n.weight + k, lanes); });
}

}  // namespace

void embed(const Embed &e, int64_t num_rows, Worker worker) {
  const int32_t type = e.table.data != nullptr ? e.table.type : e.packed.type;
  const auto each = [&](auto embed_one) {
    with_type(e.out.type, [&](auto out) {
      each_row(worker, num_rows, e.width, [&](int64_t row) { embed_one(e.ids[row], row_of<decltype(out)>(e.out, row)); });
    });
  };
  if (type > BFLOAT16) {
    with_kind(type, [&](auto kind) {
      each([&](int64_t id, auto *out) { unpack_row<decltype(kind)>(e.packed, id, e.scale, out); });
    });
  } else {
    with_type(type, [&](auto value) {
      each([&](int64_t id, auto *out) { embed_row<decltype(value)>(e, id, out); });
    });
  }
}

void norm(const Norm &n, int64_t num_rows, Worker worker) {
  with_type(n.x.type, [&](auto type) {
    each_row(worker, num_rows, n.width, [&](int64_t row) { norm_row<decltype(type)>(n, row); });
  });
}

void add(const Add &a, int64_t num_rows, Worker worker) {
  with_type(a.x.type, [&](auto type) {
    each_row(worker, num_rows, a.width, [&](int64_t row) {
      const auto *x = row_of<decltype(type)>(a.x, row);
      float *out = row_of<float>(a.out, row);
      each_vector(a.width, [&](int64_t k, int lanes) {
        put(out + k, take(out + k, lanes) + take(x + k, lanes), lanes);
      });
    });
  });
}

void gather(const Gather &g, int64_t num_rows, Worker worker) {
  with_type(g.x.type, [&](auto type) {
    using T = decltype(type);
    each_row(worker, num_rows, g.width, [&](int64_t row) {
      std::memcpy(row_of<T>(g.out, row), row_of<T>(g.x, g.rows[row]), static_cast<size_t>(g.width) * sizeof(T));
    });
  });
}

void quantize(const Quantize &q, int64_t num_rows, Worker worker) {
  with_type(q.x.type, [&](auto type) {
    each_row(worker, num_rows, q.width, [&](int64_t row) {
      const auto *x = row_of<decltype(type)>(q.x, row);
      quantize_row(q.out, row, q.width, [&](int64_t k, int lanes) { return take(x + k, lanes); });
    });
  });
}

void combine(const Combine &c, int64_t num_rows, Worker worker) {
  with_type(c.out.type, [&](auto type) {
    using T = decltype(type);
    each_row(worker, num_rows, c.width * (c.per_token + 1), [&](int64_t row) {
      T *out = row_of<T>(c.out, row);
      const T *shared = c.shared.data != nullptr ? row_of<T>(c.shared, row) : nullptr;
      const int64_t first = row * c.per_token;
      each_vector(c.width, [&](int64_t k, int lanes) {
        Floats total = shared != nullptr ? take(shared + k, lanes) * all(c.factors[row]) : zeros();
        for (int64_t pair = first; pair < first + c.per_token; pair++) {
          const float *product = row_of<float>(c.products, c.places[pair]);
          total = fma(all(c.scores[pair]), take(product + k, lanes), total);
        }
        put(out + k, total, lanes);
      });
    });
  });
}

void gate(const Gate &g, int64_t num_rows, Worker worker) {
  const auto each = [&](auto in, auto type, auto activate) {
    each_row(worker, num_rows, g.width, [&](int64_t row) {
      const auto *gate = row_of<decltype(in)>(g.x, row), *up = gate + g.width;
      auto *out = row_of<decltype(type)>(g.out, row);
      each_vector(g.width, [&](int64_t k, int lanes) {
        put(out + k, activate(take(gate + k, lanes)) * take(up + k, lanes), lanes);
      });
    });
  };
  with_type(g.x.type, [&](auto in) {
    with_type(g.out.type, [&](auto type) {
      with_activation(g.activation, [&](auto activate) { each(in, type, activate); });
    });
  });
}

// Shared out by stretches of columns: a step may have one row, of many of them.
void softcap(const Softcap &s, int64_t num_rows, Worker worker) {
  constexpr int64_t STRETCH = 4096;
  const Capping capped(s.cap);
  const int64_t stretches = (s.width + STRETCH - 1) / STRETCH;
  worker.each(num_rows * stretches, 1, [&](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; unit++) {
      const int64_t first = unit % stretches * STRETCH;
      const float *x = row_of<float>(s.x, unit / stretches) + first;
      float *out = row_of<float>(s.out, unit / stretches) + first;
      each_vector(std::min(STRETCH, s.width - first), [&](int64_t k, int lanes) {
        put(out + k, capped(take(x + k, lanes)), lanes);
      });
    }
  });
}

}  // namespace quire
