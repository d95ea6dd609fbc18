// One oneDNN product: weights are reordered once into the layout that oneDNN chooses, then the
// product can run any number of times.
#include "onednn_matmul.h"

#include <cstring>
#include <memory>
#include <unordered_map>
#include <vector>

#include <dnnl.hpp>
#include <omp.h>

namespace sluice::bench {
namespace {

using dnnl::memory;

// Fills with the bit pattern of 0.5: neither zeros (cheap on some machines) nor denormals.
memory filled(const memory::desc& desc, const dnnl::engine& engine, bool bf16) {
  memory result(desc, engine);
  const size_t num_bytes = desc.get_size();
  if (bf16) {
    const std::vector<uint16_t> values(num_bytes / 2, 0x3f00);
    std::memcpy(result.get_data_handle(), values.data(), num_bytes);
  } else {
    const std::vector<float> values(num_bytes / 4, 0.5f);
    std::memcpy(result.get_data_handle(), values.data(), num_bytes);
  }
  return result;
}

struct Product {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  dnnl::matmul primitive;
  std::unordered_map<int, memory> args;
};

}  // namespace

void limit_onednn_to_avx2() { dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx2); }

std::string onednn_isa() {
  switch (dnnl::get_effective_cpu_isa()) {
    case dnnl::cpu_isa::avx2:
      return "avx2";
    case dnnl::cpu_isa::avx2_vnni:
      return "avx2";
    case dnnl::cpu_isa::avx512_core:
      return "avx512";
    case dnnl::cpu_isa::avx512_core_vnni:
      return "avx512";
    case dnnl::cpu_isa::avx512_core_bf16:
      return "avx512bf16";
    case dnnl::cpu_isa::avx512_core_amx:
      return "amx";
    default:
      return "another ISA";
  }
}

std::function<void()> make_onednn_matmul(const OneDnnShape& shape) {
  omp_set_num_threads(shape.num_threads);
  const auto type = shape.bf16 ? memory::data_type::bf16 : memory::data_type::f32;
  const memory::desc x({shape.m, shape.k}, type, memory::format_tag::ab);
  const memory::desc rows({shape.k, shape.n}, type, memory::format_tag::ba);
  const memory::desc any({shape.k, shape.n}, type, memory::format_tag::any);
  const memory::desc out({shape.m, shape.n}, type, memory::format_tag::ab);
  try {
    auto product = std::make_shared<Product>();
    const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(x, any, out),
                                                   product->engine);
    product->primitive = dnnl::matmul(description);
    memory plain = filled(rows, product->engine, shape.bf16);
    memory packed(description.weights_desc(), product->engine);
    dnnl::reorder(plain, packed).execute(product->stream, plain, packed);
    product->args = {{DNNL_ARG_SRC, filled(x, product->engine, shape.bf16)},
                     {DNNL_ARG_WEIGHTS, packed},
                     {DNNL_ARG_DST, memory(out, product->engine)}};
    product->stream.wait();
    return [product] {
      product->primitive.execute(product->stream, product->args);
      product->stream.wait();
    };
  } catch (const dnnl::error&) {
    return {};
  }
}

}  // namespace sluice::bench
