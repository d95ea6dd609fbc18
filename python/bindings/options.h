// Keyword arguments to EngineOptions and SamplingParams, by their rows (sluice/option_row.h), so
// that a new option of the engine is one of Python, too.
//
// Used by engine.cc, service.cc and inspect.cc. Thread rule: with the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include "sluice/engine_options.h"
#include "sluice/sampling_params.h"

namespace sluice::python {

namespace nb = nanobind;

// A dict whose types stubs can name.
using Keywords = nb::typed<nb::dict, nb::str, nb::any>;

// None means the default. Sizes may be texts as on the command line: "4G", "32K". Errors: TypeError
// for an unknown keyword, with the nearest one, and for a value of another type; kInvalidArgument
// for a value out of range.
EngineOptions engine_options(const nb::dict& keywords);
SamplingParams sampling_params(const nb::dict& keywords);

// The values by keyword, None for those without one.
Keywords to_dict(const SamplingParams& params);

}  // namespace sluice::python
