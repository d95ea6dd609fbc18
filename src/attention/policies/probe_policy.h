// ProbePolicy: base of the tile policies that score KV tiles by probes
// (ops/tiles/tile_selection.h).
//
// The policies differ in the probes and in the choice among tiles, which their constructors name.
// Used by sampled, xattention and avgpool. Thread rule: as Policy.
#pragma once

#include "attention/policies/probe_records.h"
#include "attention/policies/tile_policy.h"

namespace sluice {

class ProbePolicy : public TilePolicy {
 public:
  PolicyMemory memory(const KvLayout& layout, int32_t num_blocks,
                      const PolicyLimits& limits) const override;
  void initialize(Device& device, const KvLayout& layout, int32_t num_blocks,
                  const PolicyLimits& limits) override;
  void score(Stream& stream, const SelectInput& input, const TileRows& window,
             const KeyRun& run) override;
  void choose(Stream& stream, const SelectInput& input, const TileRows& window) override;

 protected:
  // Errors: those of TilePolicy.
  ProbePolicy(std::string_view name, const SparseOptions& options, const TileRule& choice,
              const TileProbes& probes);

  size_t record_bytes(const PolicyLimits& limits) const override;

  const TileProbes& probes() const { return records_.probes(); }
  const ProbeRecords& records() const { return records_; }
  // The call that chooses by records of `probes`; it counts nothing.
  SelectTilesArgs select_args(const SelectInput& input, const TileRows& window,
                              const TileProbes& probes, const TileRule& rule) const;

 private:
  ProbeRecords records_;
};

}  // namespace sluice
