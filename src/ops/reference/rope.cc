// A complex rotation of the pairs (i, i + head_dim / 2) by the angle of channel i.
#include "ops/reference/rope.h"

#include <cmath>
#include <complex>

namespace sluice::reference {
namespace {

// Appends rope(norm(x)) of one head: norm over `norm_channels`, then each pair (i, i + half) as a
// complex number times cos + i sin. Without a norm weight only the rotation.
void append_rotated(const BFloat16* x, const RopeAndWriteKvArgs& args, const TensorView& norm,
                    const float* cos_sin, std::vector<double>& out) {
  const int head_dim = args.kv.shape.head_dim;
  std::vector<double> values;
  for (int i = 0; i < head_dim; ++i) values.push_back(static_cast<float>(x[i]));
  if (norm.present()) {
    const int channels = args.norm_channels == 0 ? head_dim : args.norm_channels;
    double squares = 0.0;
    for (double value : values) squares += value * value;
    const double root = std::sqrt(squares / channels + args.norm_eps);
    for (int i = 0; i < head_dim; ++i) {
      values[static_cast<size_t>(i)] *=
          (args.norm_offset + static_cast<double>(static_cast<float>(norm.data<BFloat16>()[i]))) /
          root;
    }
  }
  const int half = head_dim / 2;
  const size_t begin = out.size();
  out.resize(begin + static_cast<size_t>(head_dim));
  for (int i = 0; i < half; ++i) {
    // (a + ib)(cos + i sin) = (a cos - b sin) + i(b cos + a sin).
    const std::complex<double> turn(cos_sin[i], cos_sin[half + i]);
    const std::complex<double> pair(values[static_cast<size_t>(i)],
                                    values[static_cast<size_t>(i + half)]);
    out[begin + static_cast<size_t>(i)] = (pair * turn).real();
    out[begin + static_cast<size_t>(i + half)] = (pair * turn).imag();
  }
}

}  // namespace

std::vector<double> rope_angles(const RopeAnglesArgs& args) {
  const int64_t half = args.inv_freq.dim(0);
  std::vector<double> out;
  for (int64_t row = 0; row < args.positions.dim(0); ++row) {
    const auto position = static_cast<float>(args.positions.data<int32_t>()[row]);
    for (int part = 0; part < 2; ++part) {
      for (int64_t i = 0; i < half; ++i) {
        // An f32 product, converted afterwards: both factors are float.
        const double angle = position * args.inv_freq.data<float>()[i];
        const double factor = args.inv_freq.data<float>()[i] == 0.0f ? 1.0 : args.attention_factor;
        out.push_back(factor * (part == 0 ? std::cos(angle) : std::sin(angle)));
      }
    }
  }
  return out;
}

RopeAndWriteKvResult rope_and_write_kv(const RopeAndWriteKvArgs& args) {
  const int head_dim = args.kv.shape.head_dim;
  const int64_t num_q = args.q_out.dim(1);
  const int64_t num_kv = args.kv.shape.num_kv_heads;
  RopeAndWriteKvResult result;
  for (int64_t row = 0; row < args.qkv.dim(0); ++row) {
    // A row of qkv is q heads, k heads, v heads; x walks over them.
    const BFloat16* x = args.qkv.data<BFloat16>() + row * args.qkv.dim(1);
    const float* cos_sin = args.cos_sin.data<float>() + row * head_dim;
    for (int64_t head = 0; head < num_q; ++head, x += head_dim) {
      append_rotated(x, args, args.q_norm, cos_sin, result.q);
    }
    for (int64_t head = 0; head < num_kv; ++head, x += head_dim) {
      append_rotated(x, args, args.k_norm, cos_sin, result.k);
    }
    for (int64_t i = 0; i < num_kv * head_dim; ++i) {
      result.v.push_back(static_cast<float>(x[i]));
    }
  }
  return result;
}

}  // namespace sluice::reference
