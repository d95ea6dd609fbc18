// KvTables: the block tables of running sequences by id, so that a pass can name its sequences.
//
// Implemented by KvStation, and by KvMirror on a rank that follows. Thread rule: the engine's
// thread.
#pragma once

#include "core/ids.h"
#include "kv/sequence_kv.h"

namespace sluice {

class KvTables {
 public:
  virtual ~KvTables() = default;

  // Valid until the sequence changes. REQUIRES: the sequence has blocks.
  virtual KvView view(SequenceId id) const = 0;
};

}  // namespace sluice
