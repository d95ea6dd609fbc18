// One state over all tensors, fed in pieces.
#include "model/weights_hasher.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <set>
#include <stop_token>
#include <string>
#include <vector>

#include <xxhash.h>

#include "model/loading/weight_tensors.h"

namespace sluice {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 20;  // stays in the processor's cache

// XXH3 of 128 bits, which two processors compute alike. Not a cryptographic hash: it finds mistakes
// and other models, not attacks, and costs less than reading the file.
class Hash {
 public:
  Hash() : state_(XXH3_createState()) {
    if (!state_) throw std::bad_alloc();
    XXH3_128bits_reset(state_.get());
  }
  void add(std::span<const std::byte> bytes) {
    XXH3_128bits_update(state_.get(), bytes.data(), bytes.size());
  }
  void add(int64_t number) { add(std::as_bytes(std::span(&number, 1))); }
  // The length first, so that two texts side by side are not another pair of texts.
  void add(std::string_view text) {
    add(std::ssize(text));
    add(std::as_bytes(std::span(text)));
  }
  WeightsHash value() const {
    // The same bytes whatever the order of bytes in the processor's words is.
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state_.get()));
    WeightsHash result;
    std::memcpy(result.data(), canonical.digest, result.size());
    return result;
  }

 private:
  struct Freer {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Freer> state_;
};

// Name, type, shape and bytes. `piece` is the room that the bytes pass through.
void add_tensor(Hash& hash, const CheckpointTensor& tensor, std::vector<std::byte>& piece,
                const std::stop_token& stop) {
  hash.add(tensor.name);
  hash.add(dtype_name(tensor.dtype));
  hash.add(std::ssize(tensor.shape));
  for (const int64_t dim : tensor.shape) hash.add(dim);
  for (size_t done = 0; done < tensor.num_bytes && !stop.stop_requested(); done += piece.size()) {
    const auto part = std::span(piece).first(std::min(piece.size(), tensor.num_bytes - done));
    tensor.read(done, part);
    hash.add(part);
  }
}

// The tensors of a source, whole also if the source is a rank's part of them: the KV of all ranks
// depends on what each has. A tensor that several sources read comes once.
std::vector<CheckpointTensor> whole_tensors(const WeightSource& source,
                                            const Checkpoint& checkpoint,
                                            std::set<std::string>& seen) {
  const std::string& of_all = source.part.name;
  const bool has_own = of_all.empty() || source.is_range() || checkpoint.has(source.name);
  if (!seen.insert(has_own ? source.name : of_all).second) return {};
  if (!has_own) return whole_stack(source, checkpoint);
  WeightSource whole = source;
  whole.shape = source.tensor_shape();
  whole.slice = {};
  whole.part = {};
  return tensors_of(whole, checkpoint);
}

}  // namespace

WeightsHasher::WeightsHasher(const Checkpoint& checkpoint, std::span<const WeightSource> sources)
    : thread_([this, &checkpoint, sources](const std::stop_token& stop) {
        try {
          Hash hash;
          std::vector<std::byte> piece(kPieceBytes);
          // Of one rank the tensors are whole as they are; those of all experts then come in parts,
          // as they always did, so that stored KV keeps its names.
          std::set<std::string> seen;
          const bool are_parts = std::ranges::any_of(
              sources, [](const WeightSource& source) { return source.slice.present(); });
          for (const WeightSource& source : sources) {
            if (stop.stop_requested()) return;
            const auto tensors = are_parts ? whole_tensors(source, checkpoint, seen)
                                           : tensors_of(source, checkpoint);
            for (const CheckpointTensor& tensor : tensors) {
              add_tensor(hash, tensor, piece, stop);
            }
          }
          result_ = hash.value();
        } catch (...) {
          error_ = std::current_exception();
        }
      }) {}

WeightsHash WeightsHasher::finish() {
  thread_.join();
  if (error_) std::rethrow_exception(error_);
  return result_;
}

// Dummy weights follow from the seed, so it stands for their bytes.
WeightsHash hash_of_dummy_weights(int64_t seed) {
  Hash hash;
  hash.add("dummy weights, drawn by name, 2");
  hash.add(seed);
  return hash.value();
}

}  // namespace sluice
