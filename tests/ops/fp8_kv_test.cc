// KV in e4m3 and in int8: writing and attention, against the same op over bf16 that was rounded
// before (kv_rounding_test.cc), bit for bit; fp8_scores_test.cc has the other ops.
//
// Reveals: scales of the wrong token, tiles without their scales, and arithmetic that differs from
// that of bf16.
#include <cmath>
#include <cstring>
#include <limits>

#include "attention_check.h"
#include "ops/rows/rope.h"
#include "rounded_blocks.h"
#include "support/sample_of.h"

namespace sluice::testing {
namespace {

// ---- Blocks ------------------------------------------------------------------------------------

// Every byte of a block belongs to one number or one scale.
TEST(E4m3Blocks, HaveNoGapsAndNoOverlaps) {
  const KvBlockShape shape{
      .num_kv_heads = 3, .head_dim = 48, .block_tokens = 64, .element = KvElement::kE4m3};
  EXPECT_EQ(shape.block_bytes(), 2u * 3 * 64 * 49);
  std::vector<int> uses(shape.block_bytes());
  for (int32_t head = 0; head < 3; ++head) {
    for (int32_t token = 0; token < 64; ++token) {
      for (const size_t half : {shape.key_offset(head), shape.value_offset(head)}) {
        for (size_t d = 0; d < 48; ++d) ++uses[half + shape.values().row_offset(token) + d];
        ++uses[half + shape.values().scale_offset(token)];
      }
      EXPECT_EQ(shape.key_offset(head, token),
                shape.key_offset(head) + shape.keys().row_offset(token));
    }
  }
  EXPECT_EQ(uses, std::vector<int>(shape.block_bytes(), 1));
  // A page is contiguous: the same bytes as a block of its size.
  KvBlockShape page = shape;
  page.block_tokens = 32;
  EXPECT_EQ(shape.key_offset(1, 32), shape.key_offset(1) + page.keys().bytes());
  EXPECT_EQ(page.keys().bytes() % 16, 0u);
}

TEST(KvBlocksWithKeysInBf16, HaveNoGapsAndNoOverlaps) {
  const KvBlockShape shape{.num_kv_heads = 2,
                           .head_dim = 48,
                           .block_tokens = 32,
                           .element = KvElement::kInt8,
                           .keys_in_bf16 = true};
  EXPECT_EQ(shape.block_bytes(), 2u * 32 * (96 + 49));
  std::vector<int> uses(shape.block_bytes());
  for (int32_t head = 0; head < 2; ++head) {
    const size_t values = shape.value_offset(head);
    for (int32_t token = 0; token < 32; ++token) {
      for (size_t d = 0; d < 96; ++d) ++uses[shape.key_offset(head, token) + d];
      for (size_t d = 0; d < 48; ++d) ++uses[shape.value_offset(head, token) + d];
      ++uses[values + shape.values().scale_offset(token)];
    }
  }
  EXPECT_EQ(uses, std::vector<int>(shape.block_bytes(), 1));
}

// ---- Writing -----------------------------------------------------------------------------------

// Rows of a batch, in blocks of the element.
RopeAndWriteKvArgs rope_call(Machine& machine, int32_t head_dim, bool norm, KvElement element) {
  constexpr int32_t kRows = 37;
  constexpr int32_t kQHeads = 4;
  constexpr int32_t kKvHeads = 2;
  const int64_t width = (kQHeads + 2 * kKvHeads) * head_dim;
  std::vector<BFloat16> qkv = random_bf16(kRows * width, 5, 3.0f);
  // Rows of all magnitudes, so that all scales occur, the least and the largest among them.
  for (int64_t i = 0; i < kRows * width; ++i) {
    const int32_t exponent = 7 * static_cast<int32_t>(i / width - kRows / 2);
    auto& number = qkv[static_cast<size_t>(i)];
    number = BFloat16(std::ldexp(static_cast<float>(number), exponent));
  }
  for (int64_t i = 0; i < width; ++i) qkv[static_cast<size_t>(i)] = BFloat16(0.0f);
  qkv[static_cast<size_t>(7 * width - 1)] = BFloat16(std::numeric_limits<float>::infinity());
  std::vector<float> angles(static_cast<size_t>(kRows * head_dim));
  for (size_t i = 0; i < angles.size(); ++i) angles[i] = std::cos(static_cast<float>(i));
  std::vector<int32_t> kv_rows;
  for (int32_t i = 0; i < kRows; ++i) kv_rows.push_back(i == 3 ? -1 : (i * 7 + 3) % (5 * 16));
  RopeAndWriteKvArgs args;
  args.qkv = machine.tensor(qkv, {kRows, width});
  if (norm) {
    args.q_norm = machine.tensor(random_bf16(head_dim, 6), {head_dim});
    args.k_norm = machine.tensor(random_bf16(head_dim, 7), {head_dim});
  }
  args.cos_sin = machine.tensor(angles, {kRows, 2, head_dim / 2});
  args.q_out = machine.tensor(DType::kBF16, {kRows, kQHeads, head_dim});
  args.kv.shape = {
      .num_kv_heads = kKvHeads, .head_dim = head_dim, .block_tokens = 16, .element = element};
  args.kv.num_blocks = 5;
  args.kv.stride_bytes = args.kv.shape.block_bytes() + 64;
  args.kv.base = machine.poisoned(args.kv.stride_bytes * 5);
  args.kv_rows = machine.tensor(kv_rows, {kRows});
  return args;
}

std::vector<std::byte> bytes_of_blocks(const KvBlocksView& kv) {
  return {kv.base, kv.base + static_cast<size_t>(kv.num_blocks) * kv.stride_bytes};
}

void expect_written_rounded(KvElement element) {
  for (const int32_t head_dim : {16, 64, 80, 128, 256}) {
    for (const bool norm : {false, true}) {
      SCOPED_TRACE(fmt::format("head_dim {} norm {}", head_dim, norm));
      Machine machine;
      const RopeAndWriteKvArgs plain = rope_call(machine, head_dim, norm, KvElement::kBFloat16);
      const RopeAndWriteKvArgs fp8 = rope_call(machine, head_dim, norm, element);
      rope_and_write_kv(machine.stream(), plain);
      rope_and_write_kv(machine.stream(), fp8);
      machine.synchronize();
      EXPECT_EQ(bytes_of(fp8.q_out), bytes_of(plain.q_out));
      // Tokens that no row wrote are NaN in both, of whatever bits.
      KvBlocksView expected = element == KvElement::kInt8
                                  ? rounded<KvElement::kInt8>(machine, plain.kv)
                                  : rounded<KvElement::kE4m3>(machine, plain.kv);
      std::vector<bool> is_written(5 * 16);
      for (const int32_t row : values_of<int32_t>(plain.kv_rows)) {
        if (row >= 0) is_written[static_cast<size_t>(row)] = true;
      }
      for_each_token(expected, [&](int32_t block, int32_t head, int32_t token) {
        if (is_written[static_cast<size_t>(block * 16 + token)]) return;
        for (std::byte* half :
             {expected.keys<std::byte>(block, head), expected.values<std::byte>(block, head)}) {
          std::fill_n(half + expected.shape.keys().row_offset(token), head_dim, std::byte{0xFF});
        }
      });
      EXPECT_EQ(bytes_of_blocks(fp8.kv), bytes_of_blocks(expected));
    }
  }
}

TEST(Fp8Kv, IsWhatIsWrittenInBf16Rounded) {
  for (const KvElement element : {KvElement::kE4m3, KvElement::kInt8}) {
    SCOPED_TRACE(kv_element_name(element));
    expect_written_rounded(element);
  }
}

// ---- Reading -----------------------------------------------------------------------------------

template <KvElement kElement, bool kKeysInBf16 = false>
void expect_same_attention_in(const AttentionProblem& problem, AttentionRun run) {
  run.convert = rounded<kElement, kKeysInBf16>;
  const AttentionResult of_bytes = problem.run(run);
  run.convert = rounded_bf16<kElement, kKeysInBf16>;
  expect_same_bits(of_bytes, problem.run(run));
}

// Runs with elements of one byte, and with bf16 that was rounded.
void expect_same_attention(const AttentionShape& shape, const AttentionRun& run) {
  const AttentionProblem problem(shape);
  expect_same_attention_in<KvElement::kE4m3>(problem, run);
  expect_same_attention_in<KvElement::kInt8>(problem, run);
  expect_same_attention_in<KvElement::kE4m3, true>(problem, run);
}

TEST(Fp8Kv, AttentionHasTheBitsOfRoundedBf16) {
  size_t index = 0;
  for (const CpuIsa isa : runnable_isas()) {
    for (const int32_t head_dim : {16, 48, 64, 80, 128, 256}) {
      for (const int32_t block_tokens : {16, 96, 256}) {
        if (!in_sample(index++, 3)) continue;
        SCOPED_TRACE(
            fmt::format("{} head_dim {} block {}", kernels_name(isa), head_dim, block_tokens));
        expect_same_attention({.head_dim = head_dim, .group = 3, .seqs = mixed_sequences()},
                              {.isa = isa, .block_tokens = block_tokens});
        expect_same_attention({.head_dim = head_dim,
                               .group = 5,
                               .seqs = {{.first_pos = 700}, {.first_pos = 0}, {.first_pos = 255}}},
                              {.isa = isa, .block_tokens = block_tokens});
      }
    }
  }
}

TEST(Fp8Kv, WalksThatAreCutHaveTheBitsOfRoundedBf16) {
  for (const bool decode : {false, true}) {
    AttentionRun run{.isa = best_kernels(), .block_tokens = 64, .splits = {128, 192, 576}};
    expect_same_attention({.head_dim = 128,
                           .group = 4,
                           .seqs = {decode ? SequenceShape{.first_pos = 600}
                                           : SequenceShape{.num_rows = 333, .first_pos = 301}}},
                          run);
  }
}

TEST(Fp8Kv, ListedPagesHaveTheBitsOfRoundedBf16) {
  const auto lists = [](int32_t seq, int32_t head, int32_t) {
    return half_of_pages(43, static_cast<uint32_t>(seq * 31 + head + 1));
  };
  for (const CpuIsa isa : runnable_isas()) {
    AttentionRun run{.isa = isa, .block_tokens = 64, .list_of = lists, .page_tokens = 16};
    AttentionShape shape{.head_dim = 64,
                         .group = 3,
                         .seqs = {{.first_pos = 680}, {.first_pos = 131}, {.first_pos = 255}}};
    expect_same_attention(shape, run);
    run.splits = {576};
    run.in_places = true;
    expect_same_attention(shape, run);
    run.in_places = false;
    run.gathered_entries = 5;
    shape.seqs = {{.first_pos = 680}};
    expect_same_attention(shape, run);
  }
}

TEST(Fp8Kv, TileMasksAndColumnsHaveTheBitsOfRoundedBf16) {
  for (const CpuIsa isa : runnable_isas()) {
    AttentionRun run{.isa = isa, .block_tokens = 128, .page_tokens = 128, .q_page_tokens = 128};
    run.list_of = [](int32_t, int32_t head, int32_t q_page) {
      std::vector<int32_t> tiles = half_of_pages(q_page, static_cast<uint32_t>(head + q_page + 1));
      tiles.push_back(q_page);
      return tiles;
    };
    run.as_mask = true;
    const auto list_columns = [](int32_t head, int32_t segment) {
      return half_of_pages(200 * segment, 7u + 3u * static_cast<uint32_t>(head));
    };
    for (const int32_t head_dim : {48, 64}) {
      const AttentionShape shape{
          .head_dim = head_dim, .group = 2, .seqs = {{.num_rows = 500, .first_pos = 512}}};
      run.columns_of = nullptr;
      expect_same_attention(shape, run);
      run.columns_of = list_columns;
      expect_same_attention(shape, run);
    }
  }
}

// On Hopper KV is converted for some KV heads at a time, or for some sequences, where its scratch
// does not hold all of it (attention/converted_kv.h).
TEST(Fp8Kv, PartsOfACallHaveTheBitsOfRoundedBf16) {
  if (testing_cpu()) GTEST_SKIP() << "a CPU converts no more than a tile";
  for (const size_t num_seqs : {size_t{10}, size_t{40}}) {
    SCOPED_TRACE(num_seqs);
    AttentionShape shape{.head_dim = 128, .num_kv_heads = 4, .group = 2, .seqs = {}};
    shape.seqs.assign(num_seqs, {.num_rows = 600, .first_pos = 3500});
    shape.seqs[1].first_pos = 100;
    expect_same_attention(shape, {.isa = best_kernels(), .block_tokens = 256});
  }
}

TEST(Fp8Kv, PartsWithColumnsHaveTheBitsOfRoundedBf16) {
  if (testing_cpu()) GTEST_SKIP() << "a CPU converts no more than a tile";
  AttentionRun run{.isa = best_kernels(),
                   .block_tokens = 128,
                   .page_tokens = 128,
                   .q_page_tokens = 128,
                   .as_mask = true};
  run.list_of = [](int32_t, int32_t head, int32_t q_page) {
    return std::vector<int32_t>{head, 40 + 3 * head, q_page};
  };
  run.columns_of = [](int32_t head, int32_t segment) {
    return half_of_pages(400, static_cast<uint32_t>(7 + 3 * head + segment));
  };
  // 80 MB of bf16: more than the scratch has.
  expect_same_attention({.head_dim = 128,
                         .num_kv_heads = 4,
                         .group = 2,
                         .seqs = {{.num_rows = 500, .first_pos = 40000}}},
                        run);
}

// Rows that are not finite reach only those that see them. A GPU's prefill promises this for keys
// and for what lies beyond kv_end, whatever the element (attention_test.cc).
TEST(Fp8Kv, HiddenTokensMayBeNan) {
  const auto is_late = [](int32_t token) { return token >= 40; };
  const auto is_late_value = [](int32_t token) { return testing_cpu() && token >= 40; };
  for (const int32_t block_tokens : {16, 256}) {
    for (const int32_t head_dim : {48, 64, 128}) {
      SCOPED_TRACE(fmt::format("head_dim {} block {}", head_dim, block_tokens));
      const AttentionProblem problem(
          {.head_dim = head_dim, .seqs = {{.num_rows = 20, .first_pos = 30}}});
      AttentionRun run{.isa = best_kernels(),
                       .block_tokens = block_tokens,
                       .convert = rounded<KvElement::kE4m3>};
      const AttentionResult clean = problem.run(run);
      const AttentionResult with_nan = problem.with_nan(is_late, is_late_value).run(run);
      // Rows before the first NaN.
      const size_t seen = size_t{10} * 4 * sizeof(BFloat16) * static_cast<size_t>(head_dim);
      EXPECT_TRUE(std::equal(clean.out.begin(), clean.out.begin() + seen, with_nan.out.begin()));
    }
  }
}

// Beyond kv_end all is NaN, numbers and scales, in every problem; here in tiles that end anywhere.
TEST(Fp8Kv, TokensBeyondTheEndMayBeNan) {
  const auto expect_finite = [](const AttentionResult& result) {
    for (size_t i = 0; i < result.out.size(); i += sizeof(BFloat16)) {
      BFloat16 value;
      std::memcpy(&value, &result.out[i], sizeof(value));
      ASSERT_TRUE(std::isfinite(static_cast<float>(value)));
    }
  };
  for (const int32_t block_tokens : {16, 256}) {
    for (const int32_t num_tokens : {1, 15, 17, 33, 65, 127, 129, 255}) {
      for (const int32_t num_rows : {1, std::min(20, num_tokens)}) {
        SCOPED_TRACE(fmt::format("{} rows of {}, block {}", num_rows, num_tokens, block_tokens));
        const AttentionProblem problem(
            {.head_dim = 64, .seqs = {{.num_rows = num_rows, .first_pos = num_tokens - num_rows}}});
        AttentionRun run{.isa = best_kernels(), .block_tokens = block_tokens};
        run.convert = rounded<KvElement::kE4m3>;
        expect_finite(problem.run(run));
        run.convert = rounded<KvElement::kInt8>;
        expect_finite(problem.run(run));
      }
    }
  }
}

}  // namespace
}  // namespace sluice::testing
