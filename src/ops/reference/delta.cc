// One row after the other, one head after the other.
#include "ops/reference/delta.h"

#include <cmath>

namespace sluice::reference {
namespace {

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
double silu(double x) { return x * sigmoid(x); }
// Without overflow, and exact where exp(x) is small.
double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }
double bf16(uint16_t bits) { return static_cast<float>(BFloat16::from_bits(bits)); }

// A vector of length 1 in the same direction; the constant is that of the models' own code.
std::vector<double> l2(const float* x, int64_t n) {
  double sum = 0.0;
  for (int64_t i = 0; i < n; ++i) sum += double{x[i]} * x[i];
  std::vector<double> out;
  for (int64_t i = 0; i < n; ++i) out.push_back(x[i] / std::sqrt(sum + 1e-6));
  return out;
}

// S, then the head's outputs of all rows of a sequence.
struct Head {
  std::vector<double> s;
  std::vector<double> out;
};

// One step of a head. `q` and `k` are normalised.
void step(const DeltaShape& shape, const std::vector<double>& q, const std::vector<double>& k,
          const float* v, double decay, double beta, Head& head) {
  for (int32_t j = 0; j < shape.v_dim; ++j) {
    const auto at = [&](int32_t i) -> double& {
      return head.s[static_cast<size_t>(shape.element_offset(i, j))];
    };
    double seen = 0.0, out = 0.0;
    for (int32_t i = 0; i < shape.k_dim; ++i) {
      at(i) *= decay;
      seen += at(i) * k[static_cast<size_t>(i)];
    }
    const double d = beta * (v[j] - seen);
    for (int32_t i = 0; i < shape.k_dim; ++i) {
      at(i) += k[static_cast<size_t>(i)] * d;
      out += at(i) * q[static_cast<size_t>(i)] / std::sqrt(shape.k_dim);
    }
    head.out.push_back(out);
  }
}

// All rows of a sequence, for one value head: the state where it has one, then a step for each row.
// Value heads of one key head share its q and k, and each has its own decay and beta.
Head run_head(const DeltaRuleArgs& args, int64_t seq, int32_t v_head) {
  const DeltaShape& shape = args.states.shape;
  Head head{.s = std::vector<double>(static_cast<size_t>(shape.head_elements())), .out = {}};
  if (args.rows.first_pos.data<int32_t>()[seq] > 0) {
    const float* s = args.states.matrix(args.rows.read_slots.data<int32_t>()[seq], v_head);
    head.s.assign(s, s + shape.head_elements());
  }
  const int32_t* row_begin = args.rows.row_begin.data<int32_t>();
  const int64_t k_head = v_head / (shape.num_v_heads / shape.num_k_heads);
  for (int64_t row = row_begin[seq]; row < row_begin[seq + 1]; ++row) {
    const float* mixed = args.mixed.data<float>() + row * shape.num_channels();
    const float* gates = args.gates.data<float>() + row * 2 * shape.num_v_heads;
    const double a = gates[shape.num_v_heads + v_head];
    const double g = -std::exp(double{args.a_log.data<float>()[v_head]}) *
                     softplus(a + args.dt_bias.data<float>()[v_head]);
    step(shape, l2(mixed + k_head * shape.k_dim, shape.k_dim),
         l2(mixed + shape.k_width() + k_head * shape.k_dim, shape.k_dim),
         mixed + 2 * shape.k_width() + v_head * shape.v_dim, std::exp(g), sigmoid(gates[v_head]),
         head);
  }
  return head;
}

// The channel's input of a row of a sequence, which may lie before the pass, or before the text.
double input_at(const ShortConvArgs& args, int64_t seq, int64_t row, int64_t channel) {
  const DeltaShape& shape = args.states.shape;
  const int64_t begin = args.rows.row_begin.data<int32_t>()[seq];
  if (row >= begin) {
    return static_cast<float>(args.x.data<BFloat16>()[row * args.x.dim(1) + channel]);
  }
  if (args.rows.first_pos.data<int32_t>()[seq] == 0) return 0.0;
  const int64_t window_row = shape.num_taps - 1 - (begin - row);
  const uint16_t* window = args.states.window(args.rows.read_slots.data<int32_t>()[seq]);
  return bf16(window[window_row * shape.num_channels() + channel]);
}

}  // namespace

std::vector<double> short_conv(const ShortConvArgs& args) {
  const DeltaShape& shape = args.states.shape;
  const int32_t* row_begin = args.rows.row_begin.data<int32_t>();
  std::vector<double> out;
  for (int64_t seq = 0; seq < args.rows.first_pos.dim(0); ++seq) {
    for (int64_t row = row_begin[seq]; row < row_begin[seq + 1]; ++row) {
      for (int64_t c = 0; c < shape.num_channels(); ++c) {
        double sum = 0.0;
        for (int64_t j = 0; j < shape.num_taps; ++j) {
          sum += args.taps.data<float>()[j * shape.num_channels() + c] *
                 input_at(args, seq, row - (shape.num_taps - 1) + j, c);
        }
        out.push_back(silu(sum));
      }
    }
  }
  return out;
}

DeltaRuleResult delta_rule(const DeltaRuleArgs& args) {
  const DeltaShape& shape = args.states.shape;
  const int32_t* row_begin = args.rows.row_begin.data<int32_t>();
  DeltaRuleResult result;
  result.out.resize(static_cast<size_t>(args.out.num_elements()));
  for (int64_t seq = 0; seq < args.rows.first_pos.dim(0); ++seq) {
    for (int32_t v_head = 0; v_head < shape.num_v_heads; ++v_head) {
      const Head head = run_head(args, seq, v_head);
      result.matrices.insert(result.matrices.end(), head.s.begin(), head.s.end());
      for (size_t i = 0; i < head.out.size(); ++i) {
        const int64_t row = row_begin[seq] + static_cast<int64_t>(i) / shape.v_dim;
        result.out[static_cast<size_t>(row * shape.v_width() + v_head * shape.v_dim +
                                       static_cast<int64_t>(i) % shape.v_dim)] = head.out[i];
      }
    }
  }
  return result;
}

// The root mean square is that of one head, and the gate comes after the weight.
std::vector<double> gated_norm(const GatedNormArgs& args) {
  const int64_t dim = args.weight.dim(0);
  const float* x = args.x.data<float>();
  std::vector<double> out;
  for (int64_t i = 0; i < args.x.num_elements(); ++i) {
    const int64_t head_begin = i - i % args.x.dim(1) % dim;
    double squares = 0.0;
    for (int64_t c = head_begin; c < head_begin + dim; ++c) squares += double{x[c]} * x[c];
    const double root = std::sqrt(squares / static_cast<double>(dim) + args.eps);
    const int64_t row = i / args.x.dim(1), column = i % args.x.dim(1);
    const double gate = static_cast<float>(
        args.gate.data<BFloat16>()[row * args.gate.dim(1) + args.gate_column + column]);
    out.push_back(args.weight.data<float>()[column % dim] * x[i] / root * silu(gate));
  }
  return out;
}

std::vector<double> sigmoid_gate(const SigmoidGateArgs& args) {
  std::vector<double> out;
  for (int64_t i = 0; i < args.x.num_elements(); ++i) {
    out.push_back(static_cast<float>(args.x.data<BFloat16>()[i]) *
                  sigmoid(static_cast<float>(args.gate.data<BFloat16>()[i])));
  }
  return out;
}

}  // namespace sluice::reference
