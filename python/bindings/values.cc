// Conversions of lists, texts and tensors.
#include "values.h"

#include <limits>
#include <memory>

#include <fmt/format.h>

#include "core/error.h"
#include "gil.h"

namespace sluice::python {
namespace {

int32_t to_token_id(PyObject* item) {
  int overflow = 0;
  const long long id = PyLong_AsLongLongAndOverflow(item, &overflow);
  if (id == -1 && PyErr_Occurred()) throw nb::python_error();
  constexpr long long kMax = std::numeric_limits<int32_t>::max();
  if (overflow == 0 && id >= 0 && id <= kMax) return static_cast<int32_t>(id);
  fail(ErrorCode::kInvalidArgument, "{} is no token id; ids are from 0 to {}",
       nb::str(nb::handle(item)).c_str(), kMax);
}

}  // namespace

// Another thread may change the list in a pause, so each item is asked for by its index.
std::vector<int32_t> to_token_ids(nb::handle ids) {
  if (nb::isinstance<nb::str>(ids) || nb::isinstance<nb::bytes>(ids)) {
    throw nb::type_error("token ids are a list of whole numbers, not a text");
  }
  const nb::list list = nb::isinstance<nb::list>(ids) ? nb::borrow<nb::list>(ids) : nb::list(ids);
  std::vector<int32_t> result;
  result.reserve(list.size());
  GilPauses pauses;
  for (size_t i = 0; i < list.size(); ++i) {
    PyObject* item = PyList_GetItem(list.ptr(), static_cast<Py_ssize_t>(i));
    if (item == nullptr) throw nb::python_error();
    result.push_back(to_token_id(item));
    pauses.tick();
  }
  return result;
}

IdList to_list(const std::vector<int32_t>& ids) {
  nb::list list;
  GilPauses pauses;
  for (const int32_t id : ids) {
    list.append(id);
    pauses.tick();
  }
  return nb::borrow<IdList>(list);
}

Prompt to_prompt(nb::handle prompt) {
  if (!nb::isinstance<nb::str>(prompt)) return to_token_ids(prompt);
  return to_string(nb::borrow<nb::str>(prompt));
}

LogprobLists to_lists(const std::vector<std::vector<TokenLogprob>>& logprobs) {
  nb::list positions;
  GilPauses pauses;
  for (const std::vector<TokenLogprob>& position : logprobs) {
    nb::list candidates;
    for (const TokenLogprob& candidate : position) {
      candidates.append(nb::make_tuple(candidate.token_id, static_cast<double>(candidate.logprob)));
      pauses.tick();
    }
    positions.append(candidates);
    pauses.tick();
  }
  return nb::borrow<LogprobLists>(positions);
}

std::string to_string(const nb::str& text) {
  Py_ssize_t size = 0;
  const char* bytes = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (bytes == nullptr) throw nb::python_error();
  return std::string(bytes, static_cast<size_t>(size));
}

nb::str to_text(std::string_view bytes) {
  PyObject* text =
      PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "replace");
  if (text == nullptr) throw nb::python_error();
  return nb::steal<nb::str>(text);
}

// Memory of gigabytes takes long to release, so the GIL is given up for it.
FloatArray to_array(TapTensor tensor) {
  auto owned = std::make_unique<TapTensor>(std::move(tensor));
  const std::vector<size_t> shape(owned->shape.begin(), owned->shape.end());
  float* data = owned->data.data();
  const nb::capsule owner(owned.release(), [](void* pointer) noexcept {
    const nb::gil_scoped_release release;
    delete static_cast<TapTensor*>(pointer);
  });
  return FloatArray(data, shape.size(), shape.data(), owner);
}

}  // namespace sluice::python
