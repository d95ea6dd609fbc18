// Observations: bytes that KV offload moved, by phase and layer, the share of KV that sparse
// policies selected, and the memory that the engine took.
//
// Returned by LLM::observations(). Counted on the host while work is enqueued; bytes of gathers and
// tiles of masks are counted on the device, since the host does not know the lists. Exact, and
// equal in every run, but for the KV store, which works beside the steps.
// Thread rule: plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sluice {

// Pages that sparse decode listed with offloaded KV and hot pages (docs/offload.md). Lists that had
// no room among the hot pages do not count.
struct HotPageObservations {
  int64_t num_hits = 0;       // on the device already, or fetched for another sequence of the step
  int64_t num_misses = 0;     // fetched
  int64_t num_evictions = 0;  // of these: in the place of another page
};

struct LayerObservations {
  int64_t h2d_bytes = 0;  // KV loaded or gathered from host memory into slots
  int64_t d2h_bytes = 0;  // KV written back to host memory
  // Tokens that attention read, as a share of the query's position + 1: 1 for the policy "full",
  // empty if there is no count. Of policies that select tiles: tiles set, as a share of those
  // visible.
  std::optional<double> density_selected;
  // Share of the KV in host memory that was loaded, over all passes; empty where none was there.
  std::optional<double> density_transferred;
  HotPageObservations hot_pages;
};

struct PhaseObservations {
  int64_t num_steps = 0;   // passes through the model
  int64_t num_tokens = 0;  // computed in them
  int64_t num_loads = 0;   // loads and gathers: each fills one slot
  int64_t num_copies = 0;  // transfers in both directions; neighbouring blocks are one
  // Loads of a pass beyond the number of slots. Each reuses a slot of the same pass, so its
  // transfer waits until compute has read the slot's previous contents.
  int64_t num_slot_waits = 0;
  std::vector<LayerObservations> layers;  // empty when KV is on the device
  // Of all layers' h2d_bytes: keys that a sparse policy read before attention, to select with.
  int64_t key_bytes = 0;

  // Of policies that select in this phase. A sequence step is one sequence in one pass. It counts
  // as a fallback if the policy's rule makes it attend to everything: before
  // sparse_threshold_tokens, or with no more tokens than the policy would read.
  int64_t num_sequence_steps = 0;
  int64_t num_fallbacks = 0;
  int64_t num_full_rows = 0;  // tokens computed that attend to everything by the same rule
  std::optional<double> density_selected;  // as in each layer

  // Of policies that select tiles of 128 tokens, summed over layers, lists of KV heads and query
  // tiles. Where everything is attended, all visible tiles are set.
  int64_t num_tiles_set = 0;
  int64_t num_tiles_visible = 0;
  int64_t num_tiles_cut = 0;  // chosen, but cut off by sparse_max_budget_tokens
};

// With sparse_audit: the share of softmax mass that the tiles and single tokens of one layer's
// masks held, over rows of a prefill, or of all prefills since the engine was made. One row is
// measured in every 1024, by position alone; rows that attend to everything by the policy's rule do
// not count.
struct MassObservations {
  int64_t num_rows = 0;
  int64_t num_skipped = 0;  // rows with a score that is not finite; not in num_rows
  // Over rows and query heads; all of it is 1. Empty without rows.
  std::optional<double> captured;
  // Of `captured`, from the spread of rows. Empty with fewer than two, which have no spread.
  std::optional<double> standard_error;
  std::vector<double> of_heads;  // the mean of each query head
};

// One number for all layers that measured rows: the mean of theirs. Layers measure the same rows,
// so num_rows and num_skipped are those of the layer with most. Their errors may be alike, so the
// standard error is the mean of theirs: the true one is not larger. `of_heads` is empty.
MassObservations mean_over_layers(const std::vector<MassObservations>& layers);

// With fewer rows the spread is a guess: one standard error of 2 to 7 rows held the true value for
// 43 to 70 % of layers, in place of 68 %.
inline constexpr int64_t kLeastRowsOfRange = 10;

// The 95 % range of `captured` by Student's t, within 0 to 1. Empty with fewer than
// kLeastRowsOfRange rows.
struct MassRange {
  double least = 0;
  double most = 0;
};
std::optional<MassRange> range_of(const MassObservations& mass);

// Drafts of speculation (docs/speculation.md). A verify pass gives a sequence its accepted tokens
// and one more, so tokens per verify pass are 1 + accepted / drafts.
struct SpeculationCounts {
  int64_t num_drafts = 0;           // drafts that were verified, each of one sequence
  int64_t num_draft_tokens = 0;     // in them
  int64_t num_accepted_tokens = 0;  // of these, that became text

  void add(const SpeculationCounts& more) {
    num_drafts += more.num_drafts;
    num_draft_tokens += more.num_draft_tokens;
    num_accepted_tokens += more.num_accepted_tokens;
  }
};

// Experts in host memory, of all layers, since the engine was made (docs/offload.md).
struct ExpertObservations {
  int64_t num_hits = 0;        // choices of rows whose expert had a place on the device already, or
                               // was fetched for another row of the step
  int64_t num_misses = 0;      // fetched
  int64_t fetched_bytes = 0;   // of these
  int64_t streamed_bytes = 0;  // of whole layers, for passes of more rows than the places are for
};

// What a KV store has read and written since the engine was made.
struct KvStoreObservations {
  int64_t num_stored_tokens = 0;  // of prompts, that were read instead of computed
  int64_t read_bytes = 0;         // of files
  int64_t written_bytes = 0;
  int64_t num_blocks_written = 0;
  int64_t num_blocks_skipped = 0;  // evicted from memory before they could be written
  int64_t num_bad_files = 0;
};

// Sums over all steps since the engine was made; passes of `trace` and `score` are prefill steps,
// though EngineStats does not count them. A step that ended with an error is counted in
// num_steps; its bytes are not.
struct Observations {
  std::string kv_offload;        // "off", "chunked" or "layerwise"
  std::string sparse_policy;     // "full", "full+quest", ...
  size_t device_peak_bytes = 0;  // highest sum of allocations alive at one time
  size_t pinned_peak_bytes = 0;
  PhaseObservations prefill;
  PhaseObservations decode;       // verify passes included, with all of their rows
  PhaseObservations draft;        // passes in which the decode policy drafts for speculation
  SpeculationCounts speculation;  // of all requests
  std::vector<MassObservations> captured_mass;  // by layer; empty without sparse_audit and
                                                // before the first prefill
  std::optional<KvStoreObservations> kv_store;  // empty without one
  std::optional<ExpertObservations> experts;    // empty if they are on the device
};

}  // namespace sluice
