// The cache of hot pages against an LRU list, step by step: places, pages to fetch, counts, and the
// bytes that attention will find at each place.
#include "ops/pages/hot_pages.h"

#include <algorithm>
#include <numeric>

#include "op_test_util.h"
#include "ops/reference/hot_pages.h"

namespace sluice::testing {
namespace {

struct CacheShape {
  int32_t num_kv_heads = 3;
  int32_t head_dim = 16;
  int32_t block_tokens = 64;
  int32_t page_tokens = 16;
  int32_t num_host_blocks = 24;
  int32_t blocks_per_seq = 10;
  int32_t num_seqs = 1;
  int32_t list_pages = 8;   // of a list, at most
  int32_t num_places = 16;  // of a head
  bool one_list_for_all_heads = false;
  uint32_t seed = 1;

  int32_t pages_per_block() const { return block_tokens / page_tokens; }
};

// A cache under test, and an LRU list for each head.
class CacheRig {
 public:
  explicit CacheRig(const CacheShape& shape) : shape_(shape), generator_(shape.seed), machine_(2) {
    const int64_t heads = shape.num_kv_heads;
    const int64_t places = shape.num_places;
    args_.sets = {.place_of_key = empty({heads, shape.num_host_blocks * shape.pages_per_block()}),
                  .key_of_place = empty({heads, places}),
                  .newest_use = empty({heads, places}),
                  .uses = empty({heads, kUsesPerPlace * places}),
                  .cursors = empty({heads, kNumCursors})};
    args_.missing = {.keys = filled({heads, places}, 0xFF),
                     .places = filled({heads, places}, 0xFF),
                     .count = filled({heads}, 0xFF)};
    args_.counts = machine_.upload(std::vector<int64_t>{10, 20, 30}, {kNumHotCounts});
    args_.block_tokens = shape.block_tokens;
    src_.shape = {shape.num_kv_heads, shape.head_dim, shape.block_tokens};
    src_.num_blocks = shape.num_host_blocks;
    src_.stride_bytes = src_.shape.block_bytes() + 128;
    write_blocks();
    dst_.shape = {shape.num_kv_heads, shape.head_dim, shape.page_tokens};
    dst_.num_blocks = shape.num_places;
    dst_.stride_bytes = dst_.shape.block_bytes() + 64;
    dst_.base = machine_.poisoned(static_cast<size_t>(dst_.num_blocks) * dst_.stride_bytes);
    num_bytes_ = machine_.upload(std::vector<int64_t>{1000}, {1});
    args_.poisoned = dst_;
    models_.assign(static_cast<size_t>(heads), reference::HotPageSet(shape.num_places));
  }

  // The blocks of each sequence. By default each sequence has other ones, but all share the first.
  void use_blocks(std::vector<std::vector<int32_t>> ids) { block_ids_ = std::move(ids); }

  // Lists like those of decode: some pages stay, some are new. `churn`: of 8 pages, how many.
  void step(uint32_t churn) {
    make_lists(churn);
    upload_lists();
    find_hot_pages(machine_.stream(), args_);
    fetch_hot_pages(machine_.stream(),
                    {.src = src_, .dst = dst_, .missing = args_.missing, .num_bytes = num_bytes_});
    machine_.synchronize();
    expect_as_listed();
  }

  void forget(const std::vector<BlockId>& ids) {
    forget_hot_pages(
        machine_.stream(),
        {.sets = args_.sets, .block_ids = ids, .pages_per_block = shape_.pages_per_block()});
    for (const BlockId id : ids) {
      for (int32_t page = 0; page < shape_.pages_per_block(); ++page) {
        for (auto& model : models_) model.forget(id.value * shape_.pages_per_block() + page);
      }
    }
  }

  // Other bytes in all blocks, as if they were written again.
  void write_blocks() {
    machine_.synchronize();
    const size_t num_bytes = static_cast<size_t>(src_.num_blocks) * src_.stride_bytes;
    if (src_.base == nullptr) src_.base = machine_.poisoned(num_bytes);
    const auto values = random_bf16(static_cast<int64_t>(num_bytes / 2), ++value_seed_);
    std::memcpy(src_.base, values.data(), num_bytes);
  }

  int64_t num_hits() const { return expected_counts_[kHotHits] - 10; }
  int64_t num_misses() const { return expected_counts_[kHotMisses] - 20; }
  int64_t num_evictions() const { return expected_counts_[kHotEvictions] - 30; }
  Machine& machine() { return machine_; }
  FindHotPagesArgs& args() { return args_; }

 private:
  TensorView filled(std::initializer_list<int64_t> dims, uint8_t byte) {
    int64_t count = 1;
    for (const int64_t dim : dims) count *= dim;
    std::byte* data = machine_.allocate(static_cast<size_t>(count) * sizeof(int32_t));
    machine_.stream().fill(data, static_cast<size_t>(count) * sizeof(int32_t), byte);
    return TensorView(data, DType::kI32, dims);
  }
  TensorView empty(std::initializer_list<int64_t> dims) { return filled(dims, kEmptyHotPagesByte); }

  int32_t num_list_heads() const { return shape_.one_list_for_all_heads ? 1 : shape_.num_kv_heads; }
  int32_t num_pages() const { return shape_.blocks_per_seq * shape_.pages_per_block(); }

  // Keeps what stays of each list and fills it up with random pages; sorted and unique.
  void make_lists(uint32_t churn) {
    lists_.resize(static_cast<size_t>(shape_.num_seqs * num_list_heads()));
    for (std::vector<int32_t>& list : lists_) {
      std::erase_if(list, [&](int32_t) { return generator_() % 8 < churn; });
      const auto length =
          static_cast<size_t>(generator_() % 2) + static_cast<size_t>(shape_.list_pages) - 1;
      while (list.size() < length) {
        const auto page = static_cast<int32_t>(generator_() % static_cast<uint32_t>(num_pages()));
        if (std::ranges::find(list, page) == list.end()) list.push_back(page);
      }
      list.resize(length);
      std::ranges::sort(list);
    }
  }

  void upload_lists() {
    const int64_t width = shape_.list_pages + 3;  // entries after the last must not be read
    std::vector<int32_t> ids;
    std::vector<int32_t> counts;
    for (const std::vector<int32_t>& list : lists_) {
      counts.push_back(static_cast<int32_t>(list.size()));
      ids.insert(ids.end(), list.begin(), list.end());
      ids.resize(counts.size() * static_cast<size_t>(width), 1 << 20);
    }
    std::vector<int32_t> blocks;
    std::vector<int32_t> ends;
    for (int32_t seq = 0; seq < shape_.num_seqs; ++seq) {
      const std::vector<int32_t> row = blocks_of(seq);
      blocks.insert(blocks.end(), row.begin(), row.end());
      // The last blocks are not on the host.
      ends.push_back((shape_.blocks_per_seq - seq % 3) * shape_.block_tokens);
    }
    args_.pages = {.page_ids = machine_.upload(ids, {shape_.num_seqs, num_list_heads(), 1, width}),
                   .page_count = machine_.upload(counts, {shape_.num_seqs, num_list_heads(), 1}),
                   .page_tokens = shape_.page_tokens,
                   .num_entries = shape_.list_pages};
    args_.block_ids = machine_.upload(blocks, {shape_.num_seqs, shape_.blocks_per_seq});
    args_.kv_end = machine_.upload(ends, {shape_.num_seqs});
    args_.places = filled({shape_.num_seqs, shape_.num_kv_heads, 1, width - 1}, 0x7F);
  }

  std::vector<int32_t> blocks_of(int32_t seq) const {
    if (!block_ids_.empty()) return block_ids_[static_cast<size_t>(seq)];
    std::vector<int32_t> ids(static_cast<size_t>(shape_.blocks_per_seq));
    for (int32_t j = 0; j < shape_.blocks_per_seq; ++j) {
      ids[static_cast<size_t>(j)] = (j < 2 ? j : j + 5 * seq) * 7 % shape_.num_host_blocks;
    }
    return ids;
  }

  // Keys of the entries of one head that are not skipped, and where their places must be.
  struct Keys {
    std::vector<int32_t> keys;
    std::vector<size_t> at;  // index in `places`
  };
  Keys keys_of(int32_t head) const {
    Keys result;
    const auto width = static_cast<size_t>(shape_.list_pages) + 2;
    for (int32_t seq = 0; seq < shape_.num_seqs; ++seq) {
      const std::vector<int32_t> ids = blocks_of(seq);
      const int32_t end_block = shape_.blocks_per_seq - seq % 3;
      const int32_t list_head = shape_.one_list_for_all_heads ? 0 : head;
      const auto& list = lists_[static_cast<size_t>(seq * num_list_heads() + list_head)];
      for (size_t i = 0; i < list.size(); ++i) {
        const int32_t block = list[i] / shape_.pages_per_block();
        if (block >= end_block) continue;
        result.keys.push_back(ids[static_cast<size_t>(block)] * shape_.pages_per_block() +
                              list[i] % shape_.pages_per_block());
        result.at.push_back(static_cast<size_t>(seq * shape_.num_kv_heads + head) * width + i);
      }
    }
    return result;
  }

  void expect_as_listed() {
    const auto places = machine_.download<int32_t>(args_.places);
    const auto counts = machine_.download<int32_t>(args_.missing.count);
    const auto missing_keys = machine_.download<int32_t>(args_.missing.keys);
    const auto missing_places = machine_.download<int32_t>(args_.missing.places);
    std::vector<int32_t> expected_places(places.size(), 0x7F7F7F7F);
    for (int32_t head = 0; head < shape_.num_kv_heads; ++head) {
      const Keys listed = keys_of(head);
      const auto step = models_[static_cast<size_t>(head)].find(listed.keys);
      for (size_t i = 0; i < listed.keys.size(); ++i) {
        expected_places[listed.at[i]] = step.places[i];
        expect_bytes(head, listed.keys[i], step.places[i]);
      }
      const auto row = static_cast<size_t>(head * shape_.num_places);
      ASSERT_EQ(counts[static_cast<size_t>(head)], std::ssize(step.missing));
      for (size_t i = 0; i < step.missing.size(); ++i) {
        EXPECT_EQ(missing_keys[row + i], step.missing[i].key);
        EXPECT_EQ(missing_places[row + i], step.missing[i].place);
      }
      expected_counts_[kHotHits] += std::ssize(listed.keys) - std::ssize(step.missing);
      expected_counts_[kHotMisses] += std::ssize(step.missing);
      expected_counts_[kHotEvictions] += step.num_evictions;
    }
    EXPECT_EQ(places, expected_places);
    EXPECT_EQ(machine_.download<int64_t>(args_.counts), expected_counts_);
    const auto page_bytes = static_cast<int64_t>(shape_.page_tokens) * shape_.head_dim * 4;
    EXPECT_EQ(machine_.download<int64_t>(num_bytes_)[0], 1000 + num_misses() * page_bytes);
  }

  // The place holds the page's keys and values.
  void expect_bytes(int32_t head, int32_t key, int32_t place) const {
    const int32_t block = key / shape_.pages_per_block();
    const int32_t token = key % shape_.pages_per_block() * shape_.page_tokens;
    const size_t bytes = dst_.shape.keys().bytes();
    EXPECT_TRUE(std::memcmp(dst_.keys<std::byte>(place, head),
                            src_.keys<std::byte>(block, head, token), bytes) == 0 &&
                std::memcmp(dst_.values<std::byte>(place, head),
                            src_.values<std::byte>(block, head, token), bytes) == 0)
        << "head " << head << ", key " << key << ", place " << place;
  }

  CacheShape shape_;
  std::mt19937 generator_;
  Machine machine_;
  FindHotPagesArgs args_;
  KvBlocksView src_;
  KvBlocksView dst_;
  TensorView num_bytes_;
  uint32_t value_seed_ = 0;
  std::vector<std::vector<int32_t>> block_ids_;
  std::vector<std::vector<int32_t>> lists_;
  std::vector<reference::HotPageSet> models_;
  std::vector<int64_t> expected_counts_{10, 20, 30};
};

TEST(HotPagesTest, AnswersAsAnLruListDoes) {
  for (const int32_t num_places : {8, 16, 32, 40}) {
    for (const uint32_t churn : {1U, 4U, 8U}) {
      SCOPED_TRACE(fmt::format("{} places, {} of 8 pages new", num_places, churn));
      CacheRig rig({.num_places = num_places});
      for (int i = 0; i < 40; ++i) rig.step(churn);
      EXPECT_GT(rig.num_misses(), 0);
      EXPECT_EQ(rig.num_evictions() > 0, num_places < 40);
    }
  }
}

TEST(HotPagesTest, SequencesOfAStepShareTheBlocksThatTheyShare) {
  for (const int32_t num_seqs : {2, 3, 8}) {
    for (const bool shared : {false, true}) {
      SCOPED_TRACE(fmt::format("{} sequences, one list {}", num_seqs, shared));
      CacheRig rig({.num_host_blocks = 61,
                    .num_seqs = num_seqs,
                    .num_places = 8 * num_seqs,
                    .one_list_for_all_heads = shared,
                    .seed = 7});
      for (int i = 0; i < 20; ++i) rig.step(3);
      EXPECT_GT(rig.num_evictions(), 0);
    }
  }
  // All sequences have the same blocks.
  CacheRig rig({.num_seqs = 4, .num_places = 40});
  rig.use_blocks(std::vector<std::vector<int32_t>>(4, {3, 1, 4, 15, 9, 2, 6, 5, 8, 7}));
  for (int i = 0; i < 20; ++i) rig.step(4);
  EXPECT_LE(rig.num_misses(), 3 * 40);  // every page once
}

TEST(HotPagesTest, StormsOfEvictionsAndLongRunsLeaveNoTrace) {
  CacheRig rig({.num_host_blocks = 64, .blocks_per_seq = 60, .list_pages = 16, .num_places = 20});
  for (int i = 0; i < 300; ++i) rig.step(i % 50 < 3 ? 8 : 1);
}

TEST(HotPagesTest, PagesOfEverySize) {
  for (const auto& [block_tokens, page_tokens] : {std::pair(16, 16), {256, 32}, {128, 128}}) {
    for (const int32_t head_dim : {16, 80, 128, 256}) {
      SCOPED_TRACE(fmt::format("pages of {} in {} x {}", page_tokens, block_tokens, head_dim));
      CacheRig rig({.head_dim = head_dim,
                    .block_tokens = block_tokens,
                    .page_tokens = page_tokens,
                    .list_pages = 5,
                    .num_places = 7});
      for (int i = 0; i < 6; ++i) rig.step(3);
    }
  }
}

// More entries and places than a thread block has threads.
TEST(HotPagesTest, LargeCachesAndLongLists) {
  CacheRig rig({.num_kv_heads = 2,
                .num_host_blocks = 2000,
                .blocks_per_seq = 1000,
                .num_seqs = 2,
                .list_pages = 700,
                .num_places = 3000});
  for (int i = 0; i < 12; ++i) rig.step(i % 4 == 3 ? 8 : 2);
  EXPECT_GT(rig.num_evictions(), 0);
}

TEST(HotPagesTest, ForgottenBlocksAreFetchedAgain) {
  CacheRig rig({.num_places = 24});
  for (int i = 0; i < 30; ++i) {
    rig.step(2);
    if (i % 3 != 0) continue;
    std::vector<BlockId> ids;
    for (int32_t id = i % 2; id < 24; id += i % 4 == 0 ? 1 : 3) ids.emplace_back(id);
    rig.forget(ids);
  }
  std::vector<BlockId> all;
  for (int32_t id = 0; id < 24; ++id) all.emplace_back(id);
  rig.forget(all);
  rig.write_blocks();
  rig.step(0);  // the same lists: the bytes are the new ones
}

TEST(HotPagesContractDeathTest, NamesTheRuleThatIsBroken) {
  CacheRig rig({});
  rig.step(2);
  FindHotPagesArgs args = rig.args();
  args.pages.num_entries = 100;
  EXPECT_DEATH(find_hot_pages(rig.machine().stream(), args), "num_entries must be at most");
  args = rig.args();
  args.block_tokens = 40;
  EXPECT_DEATH(find_hot_pages(rig.machine().stream(), args), "multiple of pages.page_tokens");
  EXPECT_DEATH(rig.forget({BlockId(24)}), "must have keys");
}

}  // namespace
}  // namespace sluice::testing
