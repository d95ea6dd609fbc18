// Counts of the engine and its pins as dicts.
//
// Used by engine.cc and service.cc. Thread rule: with the GIL.
#pragma once

#include <string>
#include <vector>

#include "options.h"
#include "sluice/pin_info.h"
#include "sluice/request_output.h"

namespace sluice::python {

using CountDict = nb::typed<nb::dict, nb::str, int>;
using PinList = nb::typed<nb::list, Keywords>;

// By the names of the fields.
CountDict to_dict(const EngineStats& stats);
Keywords to_dict(const PinInfo& pin);
PinList to_list(const std::vector<PinInfo>& pins);

// Of to_dict, what the KV store has read and written; zeros without one.
void set_store_counts(nb::dict counts, const EngineStats& stats);

}  // namespace sluice::python
