// Values that cross the border: prompts, token ids, log-probabilities, texts and tensors.
//
// Used by engine.cc, output.cc and service.cc. Long lists are converted with pauses (gil.h).
// Thread rule: with the GIL.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>

#include "sluice/llm.h"

namespace sluice::python {

namespace nb = nanobind;

using IdList = nb::typed<nb::list, int>;
using LogprobLists = nb::typed<nb::list, nb::typed<nb::list, std::pair<int, double>>>;
using FloatArray = nb::ndarray<nb::numpy, float>;

// A list, or any other iterable, of whole numbers. Errors: TypeError for something else; ValueError
// for a number that is no id.
std::vector<int32_t> to_token_ids(nb::handle ids);
IdList to_list(const std::vector<int32_t>& ids);

// A text or token ids. Errors: TypeError; those of to_token_ids.
Prompt to_prompt(nb::handle prompt);

// Per position (token id, log-probability) of the token and of the likeliest ones.
LogprobLists to_lists(const std::vector<std::vector<TokenLogprob>>& logprobs);

// The text as UTF-8. Errors: UnicodeEncodeError for lone surrogates.
std::string to_string(const nb::str& text);
// Bytes that are no UTF-8, such as a character that is cut at the end, become U+FFFD.
nb::str to_text(std::string_view bytes);

// The tensor without a copy; the array owns it.
FloatArray to_array(TapTensor tensor);

}  // namespace sluice::python
