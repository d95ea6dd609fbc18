// The part of a layer's attention that both kinds of walk share: summaries and selection.
#include "attention/executor.h"

#include <algorithm>

namespace sluice {

PassPart part_of(const AttentionPass& pass, int64_t first_seq, int64_t num_seqs) {
  PassPart part{.first_seq = first_seq,
                .num_seqs = num_seqs,
                .batch = pass.batch,
                .kv_begin = pass.kv_begin.rows(first_seq, num_seqs),
                .kv_end = pass.kv_end.rows(first_seq, num_seqs),
                .block_table = pass.block_table.rows(first_seq, num_seqs),
                .block_ids = pass.block_ids.rows(first_seq, num_seqs)};
  part.batch.row_begin = pass.batch.row_begin.rows(first_seq, num_seqs + 1);
  part.batch.first_pos = pass.batch.first_pos.rows(first_seq, num_seqs);
  return part;
}

Executor::Executor(PolicyPair& policies, const KvLayout& layout, int64_t chunk_tokens)
    : policies_(policies),
      num_layers_(layout.num_layers),
      block_tokens_(layout.block.block_tokens),
      chunk_tokens_(chunk_tokens),
      rules_(policies.rules(layout.block)) {}

AttentionArgs Executor::args_of(const LayerInput& input, const AttentionBatch& batch,
                                const KeyRun& run, const Selection& selection) {
  return {.q = input.q,
          .out = input.out,
          .zones = input.zones,
          .scale = input.scale,
          .batch = batch,
          .kv = run.kv,
          .kv_begin = run.kv_begin,
          .kv_end = run.kv_end,
          .block_table = run.block_table,
          .selection = selection};
}

// Whether to ask the policy. A list of all pages gives the same bits as no list, and costs time.
bool Executor::selects(const AttentionPass& pass) const {
  const SelectionRule& rule = this->rule(pass.kind);
  return rule.selects() && (needs_lists() || !rule.selects_all(pass.batch.max_kv_tokens));
}

void Executor::attend(Stream& stream, const AttentionPass& pass, const LayerInput& input) {
  show_written(stream, pass, input.layer);
  const int64_t num_seqs = pass.kv_end.dim(0);
  const bool selects = this->selects(pass);
  // Lists are a rectangle [sequence][query page]: for prefills of different length most of it would
  // be empty, so the policy is asked for one sequence at a time.
  const bool one_by_one = pass.kind.is_prefill && selects;
  const int64_t step = one_by_one ? 1 : num_seqs;
  MassAudit* audit = pass.kind.is_prefill ? policies_.audit() : nullptr;
  if (audit) audit->begin_layer(stream, input.layer, num_seqs);
  for (int64_t first = 0; first < num_seqs; first += step) {
    const PassPart part = part_of(pass, first, step);
    Selection selection;
    if (selects) selection = select(stream, pass, part, input);
    walk(stream, pass, part, input, selection);
  }
  if (audit) audit->end_layer(stream);
  end_layer(pass, input.layer);
}

// Asks the policy of the pass's phase; in prefill after it has scored the keys.
Selection Executor::select(Stream& stream, const AttentionPass& pass, const PassPart& part,
                           const LayerInput& input) {
  SelectInput ask{.layer = input.layer,
                  .q = input.q,
                  .zones = input.zones,
                  .scale = input.scale,
                  .batch = part.batch,
                  .span = {},
                  .kv_end = part.kv_end,
                  .block_ids = part.block_ids};
  if (pass.kind.is_prefill) {
    SLUICE_CHECK(part.first_seq < std::ssize(pass.spans), "{} spans", pass.spans.size());
    ask.span = pass.spans[static_cast<size_t>(part.first_seq)];
    score_windows(stream, pass, part, ask);
  }
  const Selection selection = policies_.of(pass.kind).select(stream, ask);
  if (MassAudit* audit = policies_.audit(); audit && masked_in(selection)) {
    const TileScorer* scorer = policies_.of(pass.kind).tile_scorer();
    audit->begin_walk(part.first_seq, scorer ? scorer->audited_rows(ask) : TileRows{});
  }
  return selection;
}

// The audit comes first, since the output may overwrite the queries.
void Executor::attend_keys(Stream& stream, const AttentionArgs& args) {
  if (MassAudit* audit = policies_.audit(); audit && masked_in(args.selection)) {
    audit->visit(stream, args);
  }
  attention(stream, args);
}

Executor::KeyVisits Executor::key_visits(LayerId layer, const PrefillSpan& span) const {
  SelectInput input;
  input.layer = layer;
  input.span = span;
  const TileScorer* scorer = policies_.prefill().tile_scorer();
  const int64_t rows = scorer ? scorer->window_rows(input) : 0;
  if (rows == 0) return {};
  KeyVisits visits{.first_walk = scorer->first_walk(input), .num_walks = scorer->num_walks()};
  for (int64_t first = 0; first < span.num_rows; first += window_at(span, first, rows).count) {
    ++visits.num_windows;
  }
  return visits;
}

// The window that begins at row `first` of a span. All rows of a window lie in one chunk, so that a
// key is of one zone to all of them.
TileRows Executor::window_at(const PrefillSpan& span, int64_t first, int64_t window_rows) const {
  int64_t count = std::min(window_rows, span.num_rows - first);
  if (chunk_tokens_ > 0) {
    count = std::min(count, chunk_tokens_ - (span.first_pos + first) % chunk_tokens_);
  }
  return {static_cast<int32_t>(first), static_cast<int32_t>(count)};
}

// Windows outermost, since scores of one window only are kept.
void Executor::score_windows(Stream& stream, const AttentionPass& pass, const PassPart& part,
                             const SelectInput& input) {
  TileScorer* scorer = policies_.of(pass.kind).tile_scorer();
  if (scorer == nullptr) return;
  const int64_t window_rows = scorer->window_rows(input);
  if (window_rows == 0) return;
  TileRows window;
  for (int64_t first = 0; first < input.span.num_rows; first += window.count) {
    window = window_at(input.span, first, window_rows);
    for (int32_t walk = scorer->first_walk(input); walk < scorer->num_walks(); ++walk) {
      int64_t begin_pos = 0;
      for_each_key_run(stream, pass, part, {input.layer, walk}, [&](KeyRun run) {
        run.walk = walk;
        score_run(stream, pass.chunk_borders, input, window, run, begin_pos);
        begin_pos = run.end_pos;
      });
      scorer->end_walk(stream, input, window, walk);
    }
    scorer->choose(stream, input, window);
  }
}

// Shows a run of keys from begin_pos on to the prefill policy: as it is, or, where queries differ
// by zones of keys, the part in each zone with the zone's queries. These are the queries of
// attention itself, so a tile's mass is that which attention gives it. Parts end at the run's ends
// or at borders of chunks, whose positions are on the device already.
void Executor::score_run(Stream& stream, const TensorView& borders, const SelectInput& input,
                         const TileRows& window, const KeyRun& run, int64_t begin_pos) {
  TileScorer& scorer = *policies_.prefill().tile_scorer();
  if (!input.zones.present()) return scorer.score(stream, input, window, run);
  const int64_t chunk = (input.span.first_pos + window.first) / chunk_tokens_;
  struct Zone {
    int32_t index;
    TensorView q;
    int64_t first_chunk;
    int64_t end_chunk;
  };
  const int64_t before = std::max<int64_t>(0, chunk - 1);
  for (const Zone& zone :
       {Zone{2, input.zones.far, 0, before}, Zone{1, input.zones.before, before, chunk},
        Zone{0, input.q, chunk, borders.dim(0)}}) {
    const int64_t begin = std::max(begin_pos, zone.first_chunk * chunk_tokens_);
    const int64_t end = std::min(run.end_pos, zone.end_chunk * chunk_tokens_);
    if (begin >= end) continue;
    KeyRun part = run;
    part.zone = zone.index;
    if (begin > begin_pos) {
      const int64_t left_out = (begin - begin_pos) / block_tokens_;
      const int64_t num_blocks = run.block_table.dim(1);
      part.kv_begin = borders.rows(zone.first_chunk, 1);
      part.block_table = run.block_table.reshape({num_blocks})
                             .rows(left_out, num_blocks - left_out)
                             .reshape({1, num_blocks - left_out});
    }
    if (end < run.end_pos) part.kv_end = borders.rows(zone.end_chunk, 1);
    part.end_pos = end;
    SelectInput of_zone = input;
    of_zone.q = zone.q;
    scorer.score(stream, of_zone, window, part);
  }
}

// Lets both policies summarise the keys of the pass while their blocks are on the device: in
// prefill those of each layer, since the next one may use the same memory; else those of all layers
// after the last, in one launch instead of one for each layer. No selection of the pass reads
// summaries of its own rows: a list always has the newest page.
void Executor::show_written(Stream& stream, const AttentionPass& pass, LayerId layer) {
  const bool is_prefill = pass.kind.is_prefill;
  if (!is_prefill && layer.value + 1 < num_layers_) return;
  const LayerId first = is_prefill ? layer : LayerId(0);
  const KvBlocksView kv = written(pass, first);
  const int32_t num_layers = layer.value - first.value + 1;
  const int64_t to_last = written(pass, layer).base - kv.base;
  policies_.on_keys_written(stream, {.kind = pass.kind,
                                     .layer = first,
                                     .num_layers = num_layers,
                                     .layer_stride_bytes = to_last / std::max(1, num_layers - 1),
                                     .batch = pass.batch,
                                     .kv = kv,
                                     .kv_begin = pass.kv_begin,
                                     .block_table = pass.block_table,
                                     .block_ids = pass.block_ids});
}

}  // namespace sluice
