// Rounds on the stream, behind the op that writes.
#include "engine/fp8/rounded_writes.h"

#include <array>

#include "device/cpu/cpu_stream.h"
#include "engine/fp8/round_on_gpu.h"
#include "ops/kv_rounding.h"
#include "ops/rows/rope.h"

namespace sluice {

#define SLUICE_WRITE "_ZN6sluice17rope_and_write_kvERNS_6StreamERKNS_18RopeAndWriteKvArgsE"
void real_rope_and_write_kv(Stream& stream,
                            const RopeAndWriteKvArgs& args) asm("__real_" SLUICE_WRITE);
void hooked_rope_and_write_kv(Stream& stream,
                              const RopeAndWriteKvArgs& args) asm("__wrap_" SLUICE_WRITE);
#undef SLUICE_WRITE

namespace {

KvElement rounded_element = KvElement::kBFloat16;  // not rounded
bool rounds_keys = true;

void round_row(uint16_t* row, int32_t count) {
  std::array<uint8_t, 256> numbers{};
  const uint8_t scale = round_kv_row(rounded_element, row, count, numbers.data());
  read_kv_row(rounded_element, numbers.data(), scale, count, row);
}

struct RoundCall {
  KvBlocksView kv;
  const int32_t* kv_rows;
  int64_t num_rows;

  void run() const {
    for (int64_t i = 0; i < num_rows; ++i) {
      if (kv_rows[i] < 0) continue;
      const int32_t block = kv_rows[i] / kv.shape.block_tokens;
      const int32_t token = kv_rows[i] % kv.shape.block_tokens;
      for (int32_t head = 0; head < kv.shape.num_kv_heads; ++head) {
        if (rounds_keys) round_row(kv.keys<uint16_t>(block, head, token), kv.shape.head_dim);
        round_row(kv.values<uint16_t>(block, head, token), kv.shape.head_dim);
      }
    }
  }
};

}  // namespace

void hooked_rope_and_write_kv(Stream& stream, const RopeAndWriteKvArgs& args) {
  real_rope_and_write_kv(stream, args);
  if (rounded_element == KvElement::kBFloat16) return;
  if (stream.device().kind() == DeviceKind::kCuda) {
    return testing::round_on_gpu(stream, args, rounded_element, rounds_keys);
  }
  const RoundCall call{args.kv, args.kv_rows.data<int32_t>(), args.kv_rows.dim(0)};
  as_cpu(stream).submit("round KV", [call](ThreadTeam&) { call.run(); });
}

testing::RoundedWrites::RoundedWrites(KvElement element, bool keys_in_bf16) {
  rounded_element = element;
  rounds_keys = !keys_in_bf16;
}
testing::RoundedWrites::~RoundedWrites() { rounded_element = KvElement::kBFloat16; }

}  // namespace sluice
