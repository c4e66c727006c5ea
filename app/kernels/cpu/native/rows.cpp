// Operations on whole rows: embedding, norm, addition, gathering, quantization, gated activation.
//
// Rows are shared out among the threads; a row is computed from left to right by one of them.
#include <algorithm>

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

// Turns the row whose vectors `value` gives into bytes round(x / scale) + 128.
template <class Value> void quantize_row(const Quantized &q, int64_t row, int64_t width, Value value) {
  Floats most = zeros();
  each_vector(width, [&](int64_t k, int lanes) { most = max(abs(value(k, lanes)), most); });
  const float scale = std::fmax(largest(most), 1e-12f) / 127.0f;
  q.scales[row] = scale;
  uint8_t *out = q.data + row * q.stride;
  const Floats inverse = all(1.0f / scale);
  each_vector(width, [&](int64_t k, int lanes) {
    const Ints bytes = add(to_ints(value(k, lanes) * inverse), all_ints(128));
    if (lanes == LANES) return store_bytes(out + k, bytes);
    uint8_t tail[LANES];
    store_bytes(tail, bytes);
    std::memcpy(out + k, tail, static_cast<size_t>(lanes));
  });
}

template <class T> void embed_row(const Embed &e, int64_t id, float *out) {
  if (e.table.data != nullptr) {
    const T *row = row_of<T>(e.table, id);
    const Floats scale = all(e.scale);
    each_vector(e.width, [&](int64_t k, int lanes) { put(out + k, take(row + k, lanes) * scale, lanes); });
  } else {
    for (int64_t k = 0; k < e.width; k++) {
      out[k] = e.scale * to_float(panel_element<T>(e.packed.panels, e.packed.k, id, k));
    }
  }
}

template <class In> void norm_row(const Norm &n, int64_t row) {
  const In *x = row_of<In>(n.x, row);
  Floats squares[2] = {zeros(), zeros()};
  each_vector(n.width, [&](int64_t k, int lanes) {
    const Floats v = take(x + k, lanes);
    Floats &total = squares[k / LANES % 2];
    total = fma(v, v, total);
  });
  const float mean = sum(squares[0] + squares[1]) / static_cast<float>(n.width);
  const Floats scale = all(1.0f / std::sqrt(mean + n.eps));
  const auto value = [&](int64_t k, int lanes) { return take(x + k, lanes) * scale * take(n.weight + k, lanes); };
  with_type(n.out.type, [&](auto type) {
    auto *out = row_of<decltype(type)>(n.out, row);
    each_vector(n.width, [&](int64_t k, int lanes) { put(out + k, value(k, lanes), lanes); });
  });
  if (n.quantized.data != nullptr) quantize_row(n.quantized, row, n.width, value);
}

}  // namespace

void embed(const Embed &e, int64_t num_rows, Worker worker) {
  with_type(e.table.data != nullptr ? e.table.type : e.packed.type, [&](auto type) {
    each_row(worker, num_rows, e.width, [&](int64_t row) {
      embed_row<decltype(type)>(e, e.ids[row], row_of<float>(e.out, row));
    });
  });
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

void silu_mul(const SiluMul &s, int64_t num_rows, Worker worker) {
  with_type(s.x.type, [&](auto in) {
    with_type(s.out.type, [&](auto type) {
      each_row(worker, num_rows, s.width, [&](int64_t row) {
        const auto *gate = row_of<decltype(in)>(s.x, row), *up = gate + s.width;
        auto *out = row_of<decltype(type)>(s.out, row);
        each_vector(s.width, [&](int64_t k, int lanes) {
          put(out + k, silu(take(gate + k, lanes)) * take(up + k, lanes), lanes);
        });
      });
    });
  });
}

}  // namespace quire
