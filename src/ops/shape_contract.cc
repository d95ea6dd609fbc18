// The comparisons of ShapeContract, and the messages that name the symbol that is wrong.
#include "ops/shape_contract.h"

#include "core/error.h"

namespace sluice {

void ShapeContract::expect(std::string_view name, const TensorView& view, DType dtype,
                           std::initializer_list<std::string_view> symbols) {
  SLUICE_CHECK(view.present(), "{}: {} is absent", op_, name);
  expect_described(name, view, dtype, symbols);
}

void ShapeContract::expect_described(std::string_view name, const TensorView& view, DType dtype,
                                     std::initializer_list<std::string_view> symbols) {
  SLUICE_CHECK(view.dtype() == dtype, "{}: {} is {}, must be {}", op_, name, view.to_string(),
               dtype_name(dtype));
  SLUICE_CHECK(view.rank() == static_cast<int>(symbols.size()), "{}: {} is {}, must have rank {}",
               op_, name, view.to_string(), symbols.size());
  int dim = 0;
  for (std::string_view symbol : symbols) match(name, view, dim++, symbol);
}

void ShapeContract::expect_or_absent(std::string_view name, const TensorView& view, DType dtype,
                                     std::initializer_list<std::string_view> symbols) {
  if (view.present()) expect(name, view, dtype, symbols);
}

void ShapeContract::bind(std::string_view symbol, int64_t value) {
  SLUICE_CHECK(find(symbol) == nullptr, "{}: {} is bound twice", op_, symbol);
  SLUICE_CHECK(num_symbols_ < static_cast<int>(symbols_.size()), "{}: too many symbols", op_);
  symbols_[num_symbols_++] = {symbol, value, "the op"};
}

void ShapeContract::require(bool holds, std::string_view rule) {
  SLUICE_CHECK(holds, "{}: {}", op_, rule);
}

int64_t ShapeContract::operator[](std::string_view symbol) const {
  const Symbol* found = const_cast<ShapeContract*>(this)->find(symbol);
  SLUICE_CHECK(found != nullptr, "{}: {} is not bound", op_, symbol);
  return found->value;
}

ShapeContract::Symbol* ShapeContract::find(std::string_view symbol) {
  for (int i = 0; i < num_symbols_; ++i) {
    if (symbols_[i].name == symbol) return &symbols_[i];
  }
  return nullptr;
}

void ShapeContract::match(std::string_view name, const TensorView& view, int dim,
                          std::string_view symbol) {
  const int64_t value = view.dim(dim);
  if (const Symbol* known = find(symbol)) {
    SLUICE_CHECK(known->value == value, "{}: {} is {}, but {} is {} by {}", op_, name,
                 view.to_string(), symbol, known->value, known->bound_by);
    return;
  }
  // First mention: the view decides the value, and later messages name it as the origin.
  bind(symbol, value);
  symbols_[num_symbols_ - 1].bound_by = name;
}

}  // namespace sluice
