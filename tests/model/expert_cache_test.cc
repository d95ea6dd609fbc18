// The cache of experts against an LRU list, choice by choice: places, bytes there, counts; and the
// ring, slot by slot. The bytes are those of no model, since both move bytes.
#include "model/experts/expert_cache.h"

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "model/experts/expert_ring.h"
#include "ops/reference/hot_pages.h"
#include "support/test_device.h"

namespace sluice {
namespace {

// Layers of random bytes in pinned memory. The second has other sizes than the first, which a kind
// of layer may have.
class Fixture {
 public:
  explicit Fixture(int32_t num_experts = 16, int32_t num_chosen = 4)
      : device_(testing::make_test_device({.num_threads = 2})),
        stream_(device_->make_stream({.name = "compute", .num_threads = 2})) {
    for (int32_t i = 0; i < 3; ++i) {
      const size_t gate_up = static_cast<size_t>(i == 1 ? 9216 : 4096 + 512);
      const size_t down = static_cast<size_t>(i == 1 ? 4096 : 2048 + 256);
      layers_.push_back({.layer = LayerId(2 * i),
                         .num_chosen = num_chosen,
                         .gate_up = make_experts(num_experts, gate_up),
                         .down = make_experts(num_experts, down)});
    }
  }
  ~Fixture() { stream_->synchronize(); }

  Device& device() { return *device_; }
  Stream& stream() { return *stream_; }
  const std::vector<ExpertLayer>& layers() const { return layers_; }
  std::mt19937& random() { return random_; }

  TensorView upload(const std::vector<int32_t>& values, int64_t m, int64_t k) {
    buffers_.push_back(device_->allocate(values.size() * sizeof(int32_t), MemoryKind::kDevice));
    stream_->copy({.dst = buffers_.back().data(),
                   .src = reinterpret_cast<const std::byte*>(values.data()),
                   .num_bytes = buffers_.back().size_bytes()});
    stream_->synchronize();
    return TensorView(buffers_.back().data(), DType::kI32, {m, k});
  }
  template <typename T>
  std::vector<T> download(const std::byte* from, size_t count) {
    std::vector<T> values(count);
    stream_->copy({.dst = reinterpret_cast<std::byte*>(values.data()),
                   .src = from,
                   .num_bytes = count * sizeof(T)});
    stream_->synchronize();
    return values;
  }
  // Whether `num` of an ExpertSource has the bytes of that expert in host memory.
  ::testing::AssertionResult has_bytes(const PackedExperts& source, int64_t num,
                                       const PackedExperts& host, int64_t expert) {
    const size_t size = host.stride_bytes;
    const auto got = download<std::byte>(source.expert(num).data, size);
    if (std::equal(got.begin(), got.end(), host.expert(expert).data)) {
      return ::testing::AssertionSuccess();
    }
    return ::testing::AssertionFailure() << "other bytes than those of expert " << expert;
  }

 private:
  PackedExperts make_experts(int32_t num_experts, size_t stride_bytes) {
    buffers_.push_back(
        device_->allocate(stride_bytes * static_cast<size_t>(num_experts), MemoryKind::kPinned));
    for (size_t i = 0; i < buffers_.back().size_bytes(); ++i) {
      buffers_.back().data()[i] = static_cast<std::byte>(random_());
    }
    return {.first = {.data = buffers_.back().data()},
            .num_experts = num_experts,
            .stride_bytes = stride_bytes};
  }

  std::mt19937 random_{5};
  std::unique_ptr<Device> device_;
  std::vector<Buffer> buffers_;
  std::unique_ptr<Stream> stream_;
  std::vector<ExpertLayer> layers_;
};

// `m` rows of `k` different experts. pool: of the first so many.
std::vector<int32_t> choose(std::mt19937& random, int64_t m, int64_t k, int32_t pool) {
  std::vector<int32_t> chosen;
  for (int64_t row = 0; row < m; ++row) {
    std::vector<int32_t> all(static_cast<size_t>(pool));
    for (int32_t i = 0; i < pool; ++i) all[static_cast<size_t>(i)] = i;
    std::ranges::shuffle(all, random);
    chosen.insert(chosen.end(), all.begin(), all.begin() + k);
  }
  return chosen;
}

// A cache, and an LRU list for each layer.
class CacheRig {
 public:
  CacheRig(Fixture& fixture, int32_t num_places)
      : fixture_(fixture),
        cache_(fixture.device(), fixture.stream(), fixture.layers(), num_places),
        models_(fixture.layers().size(), reference::HotPageSet(num_places)) {}

  void step(int32_t index, const std::vector<int32_t>& chosen, int64_t k) {
    const int64_t m = std::ssize(chosen) / k;
    const ExpertSource source = cache_.find(index, fixture_.upload(chosen, m, k));
    const auto places = fixture_.download<int32_t>(source.experts.bytes(), chosen.size());
    const auto expected = models_[static_cast<size_t>(index)].find(chosen);
    ASSERT_EQ(places, expected.places);
    const ExpertLayer& layer = fixture_.layers()[static_cast<size_t>(index)];
    for (size_t i = 0; i < chosen.size(); ++i) {
      ASSERT_TRUE(fixture_.has_bytes(source.gate_up, places[i], layer.gate_up, chosen[i]));
      ASSERT_TRUE(fixture_.has_bytes(source.down, places[i], layer.down, chosen[i]));
    }
    const auto num_missing = static_cast<int64_t>(expected.missing.size());
    num_misses_ += num_missing;
    num_hits_ += static_cast<int64_t>(chosen.size()) - num_missing;
    num_bytes_ += num_missing * static_cast<int64_t>(layer.expert_bytes());
  }

  void expect_counts() {
    cache_.fetch_counts();
    fixture_.stream().synchronize();
    const ExpertCounts counts = cache_.counts();
    EXPECT_EQ(counts.num_hits, num_hits_);
    EXPECT_EQ(counts.num_misses, num_misses_);
    EXPECT_EQ(counts.num_bytes, num_bytes_);
  }
  int64_t num_hits() const { return num_hits_; }
  int64_t num_misses() const { return num_misses_; }

 private:
  Fixture& fixture_;
  ExpertCache cache_;
  std::vector<reference::HotPageSet> models_;
  int64_t num_hits_ = 0;
  int64_t num_misses_ = 0;
  int64_t num_bytes_ = 0;
};

TEST(ExpertCache, FindsWhatAnLruListFinds) {
  Fixture fixture;
  for (const int32_t num_places : {4, 5, 8, 15, 16}) {
    CacheRig rig(fixture, num_places);
    for (int step = 0; step < 60; ++step) {
      const auto index = static_cast<int32_t>(fixture.random()() % 3);
      const int64_t m = 1 + fixture.random()() % static_cast<uint32_t>(num_places / 4);
      const int32_t pool = step % 3 == 0 ? 16 : 6;  // reuse in two of three steps
      ASSERT_NO_FATAL_FAILURE(rig.step(index, choose(fixture.random(), m, 4, pool), 4));
    }
    rig.expect_counts();
    EXPECT_GT(rig.num_hits(), 0);
    EXPECT_GT(rig.num_misses(), num_places);
  }
}

// Rows that all choose the same, and rows that fill the cache with different ones.
TEST(ExpertCache, TheEndsOfAStepAreExact) {
  Fixture fixture;
  CacheRig rig(fixture, 16);
  const std::vector<int32_t> same{3, 9, 1, 7, 3, 9, 1, 7, 7, 1, 9, 3, 3, 9, 1, 7};
  ASSERT_NO_FATAL_FAILURE(rig.step(0, same, 4));
  EXPECT_EQ(rig.num_misses(), 4);
  std::vector<int32_t> all(16);
  for (int32_t i = 0; i < 16; ++i) all[static_cast<size_t>(i)] = 15 - i;
  ASSERT_NO_FATAL_FAILURE(rig.step(0, all, 4));
  EXPECT_EQ(rig.num_misses(), 16);
  ASSERT_NO_FATAL_FAILURE(rig.step(0, all, 4));
  EXPECT_EQ(rig.num_misses(), 16);
  ASSERT_NO_FATAL_FAILURE(rig.step(2, all, 4));  // another layer has its own places
  EXPECT_EQ(rig.num_misses(), 32);
  rig.expect_counts();
}

TEST(ExpertCache, SizesFollowFromBytes) {
  const Fixture fixture;
  const auto& layers = fixture.layers();
  EXPECT_EQ(ExpertCache::fewest_places(layers), 4);
  EXPECT_EQ(ExpertCache::rows_in(15, layers), 3);
  EXPECT_EQ(ExpertCache::device_bytes(layers, 0), 0u);
  for (int32_t places = 4; places <= 16; ++places) {
    const size_t bytes = ExpertCache::device_bytes(layers, places);
    EXPECT_EQ(ExpertCache::places_in(bytes, layers), places);
    EXPECT_EQ(ExpertCache::places_in(bytes - 1, layers), places == 4 ? 0 : places - 1);
  }
  EXPECT_EQ(ExpertCache::places_in(size_t{1} << 40, layers), 16);
}

// Every layer of every pass finds its own bytes, and as many layers are copied as have no slot.
TEST(ExpertRing, LayersComeInOrderAndAgain) {
  for (int32_t num_slots = 1; num_slots <= 3; ++num_slots) {
    Fixture fixture;
    const auto& layers = fixture.layers();
    ExpertRing ring(fixture.device(), fixture.stream(), layers, num_slots);
    const TensorView experts = fixture.upload({0, 5, 15, 2}, 1, 4);
    const auto use = [&](int32_t index) {
      const ExpertLayer& layer = layers[static_cast<size_t>(index)];
      for (int again = 0; again < 2; ++again) {
        const ExpertSource source = ring.use(index, experts);
        ASSERT_EQ(source.experts.bytes(), experts.bytes());
        for (const int32_t expert : {0, 5, 15}) {
          ASSERT_TRUE(fixture.has_bytes(source.gate_up, expert, layer.gate_up, expert));
          ASSERT_TRUE(fixture.has_bytes(source.down, expert, layer.down, expert));
        }
      }
    };
    for (int pass = 0; pass < 4; ++pass) {
      ring.begin_pass();
      // One pass ends early: in layer 1, and without its release.
      for (int32_t index = 0; index < (pass == 1 ? 2 : 3); ++index) {
        ASSERT_NO_FATAL_FAILURE(use(index));
        if (pass != 1 || index == 0) ring.release(index);
      }
    }
    EXPECT_EQ(ring.num_waits(WaitKind::kFilled), 3 * 3 + 2);
    int64_t all_bytes = 0;
    for (const ExpertLayer& layer : layers) all_bytes += static_cast<int64_t>(layer.bytes());
    if (num_slots == 3) {
      EXPECT_EQ(ring.loaded_bytes(), all_bytes);
    } else {
      EXPECT_GT(ring.loaded_bytes(), 3 * all_bytes);
    }
  }
}

}  // namespace
}  // namespace sluice
