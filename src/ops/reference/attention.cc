// out = softmax(scale * q K^T) V over the tokens that a row may see.
#include "ops/reference/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace sluice::reference {
namespace {

// One query head of one row.
struct Head {
  int64_t seq = 0;
  int32_t position = 0;  // absolute
  int32_t kv_head = 0;
  int32_t q_page = 0;           // counted from the one that holds the sequence's first row
  const BFloat16* q = nullptr;  // [head_dim]
};

// The index of the token's page in the list of the head's query page; -1 if the page is not listed,
// or is outside the gathered entries.
int32_t listed_at(const Selection& selection, const Head& head, int32_t token) {
  const PageList& pages = *listed_in(selection);
  const int64_t num_list_heads = pages.page_ids.dim(1);
  const int64_t num_q_pages = pages.page_ids.dim(2);
  const int64_t list_head = num_list_heads == 1 ? 0 : head.kv_head;
  const int64_t list = (head.seq * num_list_heads + list_head) * num_q_pages + head.q_page;
  const int32_t* ids = pages.page_ids.data<int32_t>() + list * pages.page_ids.dim(3);
  const int32_t count = pages.page_count.data<int32_t>()[list];
  const auto index =
      static_cast<int32_t>(std::find(ids, ids + count, token / pages.page_tokens) - ids);
  // Gathered pages outside the call's entries belong to another call of the list.
  const bool here = gathered_in(selection) == nullptr ||
                    (index >= pages.first_entry && index < pages.first_entry + pages.num_entries);
  return index < count && here ? index : -1;
}

// Whether the mask lets the head's row attend to the tile of the token.
bool is_set(const TileMask& mask, const Head& head, int32_t token) {
  const int64_t num_heads = mask.bits.dim(1);
  const int64_t list_head = num_heads == 1 ? 0 : head.kv_head;
  const int64_t q_tile = head.position / kMaskTileTokens - mask.first_q_tile;
  const int64_t kv_tile = token / kMaskTileTokens;
  const int64_t entry = (head.seq * num_heads + list_head) * mask.bits.dim(2) + q_tile;
  const auto word =
      static_cast<uint32_t>(mask.bits.data<int32_t>()[entry * mask.bits.dim(3) + kv_tile / 32]);
  return (word >> (kv_tile % 32) & 1) != 0;
}

// Whether mask or list lets the head attend to the token; everything is selected without either.
bool is_selected(const AttentionArgs& args, const Head& head, int32_t token) {
  if (const MaskedTiles* tiles = masked_in(args.selection)) return is_set(tiles->mask, head, token);
  return listed_in(args.selection) == nullptr || listed_at(args.selection, head, token) >= 0;
}

// The keys (or, with `values`, the values) of a token: head_dim numbers.
const BFloat16* entry(const AttentionArgs& args, const Head& head, int32_t token, bool values) {
  const KvBlockShape& shape = args.kv.shape;
  // A gathered page is a block of its own, found by its index in the list; any other token through
  // the block table of its run.
  int32_t block = 0;
  if (const GatheredPages* pages = gathered_in(args.selection)) {
    const int32_t index = listed_at(args.selection, head, token);
    const TensorView& places = pages->places;
    const int64_t list = head.seq * shape.num_kv_heads + head.kv_head;
    block = places.present() ? places.data<int32_t>()[list * places.dim(3) + index]
                             : index - pages->list.first_entry;
  } else {
    const int32_t index =
        token / shape.block_tokens - args.kv_begin.data<int32_t>()[head.seq] / shape.block_tokens;
    block = args.block_table.data<int32_t>()[head.seq * args.block_table.dim(1) + index];
  }
  const int32_t in_block = token % shape.block_tokens;
  return values ? args.kv.values<BFloat16>(block, head.kv_head, in_block)
                : args.kv.keys<BFloat16>(block, head.kv_head, in_block);
}

// Keys and values of a token that a head attends to: head_dim numbers each.
struct Token {
  const BFloat16* k = nullptr;
  const BFloat16* v = nullptr;
};

// The columns of the head's segment before `end` whose tiles are not set.
void add_columns(const AttentionArgs& args, const MaskedTiles& tiles, const Head& head, int32_t end,
                 std::vector<Token>& tokens) {
  const TileColumns& columns = tiles.columns;
  const int64_t list_head = columns.positions.dim(0) == 1 ? 0 : head.kv_head;
  const int64_t segment = head.position / columns.segment_tokens - columns.first_segment;
  const int64_t list = list_head * columns.positions.dim(1) + segment;
  const int64_t max_columns = columns.positions.dim(2);
  const int64_t head_dim = args.kv.shape.head_dim;
  const BFloat16* k =
      columns.kv.data<BFloat16>() +
      (segment * args.kv.shape.num_kv_heads + head.kv_head) * 2 * max_columns * head_dim;
  for (int32_t i = 0; i < columns.count.data<int32_t>()[list]; ++i) {
    const int32_t position = columns.positions.data<int32_t>()[list * max_columns + i];
    if (position >= end || is_set(tiles.mask, head, position)) continue;
    tokens.push_back({.k = k + i * head_dim, .v = k + (max_columns + i) * head_dim});
  }
}

// What the row sees: tokens of the run up to its own position that are selected, then columns.
std::vector<Token> visible_tokens(const AttentionArgs& args, const Head& head) {
  const int32_t begin = args.kv_begin.data<int32_t>()[head.seq];
  const int32_t end = std::min(args.kv_end.data<int32_t>()[head.seq], head.position + 1);
  std::vector<Token> tokens;
  for (int32_t token = begin; token < end; ++token) {
    if (!is_selected(args, head, token)) continue;
    tokens.push_back({entry(args, head, token, false), entry(args, head, token, true)});
  }
  const MaskedTiles* tiles = masked_in(args.selection);
  if (tiles != nullptr && tiles->columns.present()) add_columns(args, *tiles, head, end, tokens);
  return tokens;
}

// scale * q.k for each of `tokens`.
std::vector<double> scores(const AttentionArgs& args, const Head& head,
                           const std::vector<Token>& tokens) {
  std::vector<double> result;
  for (const Token& token : tokens) {
    double dot = 0.0;
    for (int32_t d = 0; d < args.kv.shape.head_dim; ++d) {
      dot += static_cast<double>(static_cast<float>(head.q[d])) * static_cast<float>(token.k[d]);
    }
    result.push_back(args.scale * dot);
  }
  return result;
}

// ln(sum of e^value); -inf for no values, as the contract says for a row that sees no token.
double log_sum_exp(const std::vector<double>& values) {
  if (values.empty()) return -std::numeric_limits<double>::infinity();
  const double largest = *std::max_element(values.begin(), values.end());
  double sum = 0.0;
  for (double value : values) sum += std::exp(value - largest);
  return largest + std::log(sum);
}

// Calls fn(head) for every row and query head in the order of the output.
template <typename F>
void for_each_head(const AttentionArgs& args, F&& fn) {
  const int64_t num_q_heads = args.q.dim(1);
  const int64_t group = num_q_heads / args.kv.shape.num_kv_heads;
  const int32_t* row_begin = args.batch.row_begin.data<int32_t>();
  const PageList* pages = listed_in(args.selection);
  const int32_t q_page_tokens = pages == nullptr ? 0 : pages->q_page_tokens;
  for (int64_t seq = 0; seq < args.batch.first_pos.dim(0); ++seq) {
    const int32_t first_pos = args.batch.first_pos.data<int32_t>()[seq];
    for (int32_t row = row_begin[seq]; row < row_begin[seq + 1]; ++row) {
      const int32_t position = first_pos + row - row_begin[seq];
      const int32_t q_page =
          q_page_tokens > 0 ? position / q_page_tokens - first_pos / q_page_tokens : 0;
      for (int64_t h = 0; h < num_q_heads; ++h) {
        fn(Head{.seq = seq,
                .position = position,
                .kv_head = static_cast<int32_t>(h / group),
                .q_page = q_page,
                .q = args.q.data<BFloat16>() + (row * num_q_heads + h) * args.q.dim(2)});
      }
    }
  }
}

}  // namespace

std::vector<double> attention(const AttentionArgs& args) {
  std::vector<double> out;
  const auto head_dim = static_cast<size_t>(args.kv.shape.head_dim);
  for_each_head(args, [&](const Head& head) {
    const std::vector<Token> tokens = visible_tokens(args, head);
    const std::vector<double> score = scores(args, head, tokens);
    // out = sum over tokens of exp(score - lse) * v.
    const double lse = log_sum_exp(score);
    std::vector<double> acc(head_dim);
    for (size_t t = 0; t < tokens.size(); ++t) {
      const double weight = std::exp(score[t] - lse);
      for (size_t d = 0; d < head_dim; ++d) acc[d] += weight * static_cast<float>(tokens[t].v[d]);
    }
    out.insert(out.end(), acc.begin(), acc.end());
  });
  return out;
}

std::vector<double> attention_log_sum_exp(const AttentionArgs& args) {
  std::vector<double> out;
  for_each_head(args, [&](const Head& head) {
    out.push_back(log_sum_exp(scores(args, head, visible_tokens(args, head))));
  });
  return out;
}

}  // namespace sluice::reference
