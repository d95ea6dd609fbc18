// Rotary embedding in double precision, written from the equations. Used by tests only.
// Thread rule: pure functions over host-readable memory.
#pragma once

#include <vector>

#include "ops/rows/rope.h"

namespace sluice::reference {

// What `cos_sin` must be, [m, 2, head_dim / 2]. The angle itself is the f32 product that the
// contract prescribes; its cosine and sine are double.
std::vector<double> rope_angles(const RopeAnglesArgs& args);

// Rows in the order of `qkv`, whatever their kv_rows entry.
struct RopeAndWriteKvResult {
  std::vector<double> q;  // [m, num_q_heads, head_dim]
  std::vector<double> k;  // [m, num_kv_heads, head_dim]
  std::vector<double> v;  // [m, num_kv_heads, head_dim]
};

// What `q_out` and the entries that `kv_rows` names must be; writes nothing.
RopeAndWriteKvResult rope_and_write_kv(const RopeAndWriteKvArgs& args);

}  // namespace sluice::reference
