// Errors of the engine as exceptions of Python.
//
// Used by every file of the module. Thread rule: with the GIL.
#pragma once

#include <string_view>
#include <vector>

#include <nanobind/nanobind.h>

#include "sluice/error.h"

namespace sluice::python {

namespace nb = nanobind;

// The exception of the package for an error, not raised: an instance of a subclass of sluice.Error.
nb::object to_exception(const Error& error);

// "LLM() got an unexpected keyword argument 'max_len'; did you mean 'max_model_len'?"
std::string unknown_keyword(std::string_view function, std::string_view name,
                            const std::vector<std::string>& known);

}  // namespace sluice::python
