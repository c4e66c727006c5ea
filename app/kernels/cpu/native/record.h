// The records of a step: what each operation reads and writes. Mirrored field by field in records.py.
//
// A step is a list of records, replayed in order by graph.cpp. Pointers and sizes in a record never change; how many
// rows there are, and how many threads, comes with each replay. Every thread of the team runs every record on its share
// of the work and waits for the others before the next one, so an operation needs no synchronisation of its own.
#pragma once

#include <cstdint>

#include "team.h"

namespace quire {

enum Code : int32_t {
  EMBED,
  NORM,
  ADD,
  GATHER,
  QUANTIZE,
  GATE,
  LINEAR,
  ROTATE,
  ATTENTION,
  ATTENTION_MERGE,
  SAMPLE,
  PACK,
  SOFTCAP,
  ROUTE,
  EXPERTS,
  COMBINE,
  NUM_CODES
};

// The last ones are panels of quantized weights, see panels.h.
enum Type : int32_t { FLOAT32, FLOAT16, BFLOAT16, INT8, INT4, Q4_0, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K };

// Which rows a record works on: the step's tokens, or those whose logits are wanted, or the pairs of a token and one of
// its experts: PAIRS where a token has one, one more for each other.
enum Rows : int32_t { TOKENS, OUTPUTS, PAIRS };

struct Record {
  int32_t code;
  int32_t rows;
  const void *fields;  // the struct of that code
};

// Rows of values; `stride` counts elements from one row to the next.
struct Matrix {
  void *data;
  int64_t stride;
  int32_t type;
  int32_t padding;
};

// A group of quantized activations, see Quantized.
struct QuantizedGroup {
  float scale;
  float sum;           // of the values, as their integers have it
  int32_t minus_sum;   // of the integers, as is
  int32_t minus_first; // of the first half of the group
};

// Activations as quantized panels multiply them: integers round(x / scale), in groups of GROUP columns. They have as many
// bytes as there are planes: one, or two, of which the first is the higher. A row's group is GROUP bytes of each plane.
// `num_groups` 0: there are none.
struct Quantized {
  int8_t *data;
  int64_t stride;  // bytes
  QuantizedGroup *groups;  // [rows, num_groups]
  int64_t num_groups;
  int32_t num_planes;
  int32_t padding;
};

// The position and sequence of each token row, and the block table of every sequence.
struct PagedRows {
  const int64_t *positions;
  const int64_t *state_rows;
  const int32_t *block_tables;
  int64_t table_stride;
  int64_t block_size;
};

// One layer's keys or values: [blocks, block_size, kv heads, head_dim] of `type`. INT8 heads end in their scale: they
// take head_dim + 4 bytes, the last four a float.
struct Cache {
  void *data;
  int64_t block_stride;  // elements from one block to the next
  int32_t type;
  int32_t padding;
};

// A matrix [n, k] packed in panels; see packing.py for the layouts.
struct Packed {
  const void *panels;
  const float *bias;      // of all panels' rows, or null
  int64_t n, k;
  int32_t type;
  int32_t is_interleaved; // 16 rows of the first half, then 16 of the second, in each panel: gate and up
};

// Rows of a file, numbers or blocks of the type that the panels hold, into panels.
struct Pack {
  Packed weight;
  const uint8_t *const *rows; // where each of the n begins
};

struct Embed {
  const int64_t *ids;
  Matrix table;   // row-major rows, or `data` null:
  Packed packed;  // the panels of the output matrix, which ties them
  Matrix out;
  int64_t width;
  float scale;    // of the rows
  int32_t padding;
};

// RMS norm; without a weight the values are as they were. `out` may be `x`.
struct Norm {
  Matrix x;
  const float *weight;  // or null
  Matrix out;
  Quantized quantized;  // of the result, besides `out`
  int64_t width;
  float eps;
  int32_t padding;
};

// out += x
struct Add {
  Matrix x, out;
  int64_t width;
};

struct Gather {
  Matrix x;
  const int64_t *rows;
  Matrix out;
  int64_t width;
};

struct Quantize {
  Matrix x;
  Quantized out;
  int64_t width;
};

enum Activation : int32_t { SILU, GELU };

// out[., width] = activation(first half) * second half
struct Gate {
  Matrix x, out;
  int64_t width;
  int32_t activation;
  int32_t padding;
};

// out = cap * tanh(x / cap), FLOAT32 both; `out` may be `x`.
struct Softcap {
  Matrix x, out;
  int64_t width;
  float cap;
  int32_t padding;
};

// What a product does with its sums: store them; add them to `out`; or store activation(gate) * up.
enum Epilogue : int32_t { STORE, ACCUMULATE, GATED };

struct Linear {
  Packed weight;
  Matrix x;             // FLOAT32 for FLOAT32 and FLOAT16 weights, BFLOAT16 for BFLOAT16 ones
  Quantized quantized;  // for quantized weights, instead of `x`
  Matrix out;
  int32_t epilogue;
  int32_t activation;   // of GATED
};

// How a router's products become scores.
enum RouterScores : int32_t { SOFTMAX, SIGMOID, CHOSEN_SOFTMAX };

// Which experts compute each token, and the tokens of each expert. A pair is a token's number times `per_token` plus the
// place of the expert among the token's, which ascend.
struct Route {
  Matrix products;          // FLOAT32 [., 3 * num_products]: of the router's rows; of what these lack, if `has_rest`;
                            // behind them scratch memory
  const float *correction;  // of the scores, for choosing alone, or null
  int32_t *experts;         // out: [., per_token]
  float *scores;            // out: the same shape
  float *shared;            // out: what the shared expert's result is multiplied by
  int32_t *pairs;           // out: by expert, those of one by token
  int32_t *places;          // out: of each pair, where it stands there
  int64_t *tokens;          // out: of each pair there, its token
  int32_t *starts;          // out: [count + 1], of each expert's pairs
  int32_t count, per_token, num_groups, groups_per_token;
  int32_t kind;             // RouterScores
  int32_t is_normalized;
  int32_t has_shared_gate;  // the router's last row is that of the shared expert
  int32_t has_rest;
  float scale;
  int32_t padding;
};

// A product of the rows of each expert, which stand together, with its matrix; all matrices are of one shape and type.
struct Experts {
  const Packed *weights;
  const int32_t *starts;
  Matrix x;             // as in Linear
  Quantized quantized;
  Matrix out;
  int32_t count;
  int32_t epilogue;     // STORE or GATED
};

// out = shared factor * shared + sum of score * product over a token's pairs, in their order
struct Combine {
  Matrix products;       // FLOAT32, a row for each pair, by `places`
  const int32_t *places;
  const float *scores;
  const float *factors;  // of the shared result
  Matrix shared;         // `data` null: there is none
  Matrix out;            // may be `shared`
  int64_t width;
  int64_t per_token;
};

// Norm and rotation of queries and keys; keys and values go to the cache.
struct Rotate {
  Matrix qkv;                // [., (heads + 2 kv heads) * head_dim]
  const float *norm_weight;  // [heads + kv heads, head_dim] or null
  const float *rope;         // [positions, head_dim]: cosines, then sines
  const float *query_scale;  // [positions]: what queries are multiplied by; or null
  PagedRows paged_rows;
  Cache keys, values;
  Matrix queries;            // out: [., heads * head_dim]
  int32_t num_heads, num_kv_heads, head_dim;
  float eps;
};

// Causal attention of every row over its own sequence. Long contexts are cut into parts, which become units of work of
// their own; ATTENTION_MERGE puts them together, always in the same order.
struct Attention {
  Matrix queries;
  PagedRows paged_rows;
  Cache keys, values;
  Matrix out;        // [., heads * head_dim]
  float *parts;      // scratch, see attention.h
  int32_t num_heads, num_kv_heads, head_dim;
  int32_t window;    // tokens that a row sees, itself included; 0: all
  float scale;
  float softcap;     // of the scaled scores; 0: none
};

constexpr int SAMPLE_BLOCK = 64;  // scores that are looked at together

// What one sequence changes in its logits before sampling: biases, penalties, a minimum length. Only ids that are named
// here are touched. The engine adds to `seen` as the answer grows.
struct Penalties {
  const int32_t *bias_ids;
  const float *biases;
  const int32_t *seen_ids;  // each once: tokens of the prompt, if repetition counts, and of the answer
  const int32_t *seen;      // of each: twice how often it stands in the answer, and 1 if it is in the prompt
  const int32_t *endings;   // impossible while the answer has fewer than `min_tokens`
  int32_t num_biases, num_seen, num_endings;
  float repetition, presence, frequency;
  int64_t num_prompt, min_tokens;
  int64_t num_tokens;       // of prompt and answer that `seen` counts
};

// How one sequence samples its tokens; written when it starts (see execute/cpu/sampling_table.py of the engine).
struct SamplingSettings {
  uint64_t seed;
  int64_t choice;
  const Penalties *penalties;  // or null
  float temperature;               // 0: greedy
  float top_p, min_p;
  int32_t top_k;                   // 0: all
  int32_t num_logprobs;            // best tokens whose log-probabilities are wanted with the sampled one's; -1: none
  int32_t is_on_host;              // what this kernel does not do: the token is -1
};

constexpr int MAX_LOGPROBS = 20;

struct Sample {
  Matrix logits;              // FLOAT32 [outputs, width]
  const int64_t *output_rows; // the token row of each
  const int64_t *positions;   // of the token rows; the sampled token stands one further
  const int64_t *ids;         // of the token rows
  const int64_t *state_rows;  // whose `settings` each output uses
  const SamplingSettings *settings;
  const uint32_t *masks;      // rows of `mask_words`, a bit for each token that may be sampled, and one word behind them
  const int32_t *mask_rows;   // of each output: 1 + its row of `masks`; 0: every token may be sampled
  int64_t *token_ids;         // out
  float *logprobs;            // out: [outputs, 1 + MAX_LOGPROBS], of the sampled token, then of the best ones
  int32_t *logprob_ids;       // out: the same shape: the rank of the sampled token, then the best ones; -1: no more
  float *scratch;             // [threads, blocks of SAMPLE_BLOCK that the width takes, SAMPLE_BLOCK + 1]
  int64_t width;
  int64_t mask_words;
};

// A cache of KV blocks [layers, 2, blocks, ...] of any strides, in bytes; one block of one layer's keys or values is one
// piece.
struct Blocks {
  char *data;
  int64_t layer_stride, half_stride, block_stride;

  char *at(int64_t layer, int64_t half, int64_t block) const {
    return data + layer * layer_stride + half * half_stride + block * block_stride;
  }
};

// Each runs one record over `num_rows` rows, together with all other threads of the team.
void embed(const Embed &, int64_t num_rows, Worker);
void norm(const Norm &, int64_t num_rows, Worker);
void add(const Add &, int64_t num_rows, Worker);
void gather(const Gather &, int64_t num_rows, Worker);
void quantize(const Quantize &, int64_t num_rows, Worker);
void gate(const Gate &, int64_t num_rows, Worker);
void linear(const Linear &, int64_t num_rows, Worker);
void rotate(const Rotate &, int64_t num_rows, Worker);
void attention(const Attention &, int64_t num_rows, Worker);
void merge_attention(const Attention &, int64_t num_rows, Worker);
void sample(const Sample &, int64_t num_rows, Worker);
void pack(const Pack &, int64_t num_panels, Worker);
void softcap(const Softcap &, int64_t num_rows, Worker);
void route(const Route &, int64_t num_rows, Worker);
void experts(const Experts &, int64_t num_pairs, Worker);
void combine(const Combine &, int64_t num_rows, Worker);

}  // namespace quire
