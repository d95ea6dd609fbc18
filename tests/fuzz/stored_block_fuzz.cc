// Reads any bytes as the file of a stored block: a fault, or a block whose every section agrees
// with its checksum and whose header is written back as it was read.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "store/block_reader.h"
#include "store/checksum.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

// A file in memory.
class MemoryFile : public sluice::StoreFiles {
 public:
  explicit MemoryFile(std::span<const std::byte> bytes) : bytes_(bytes) {}

  int read(int, uint64_t offset, std::span<std::byte> dst) override {
    if (offset > bytes_.size() || dst.size() > bytes_.size() - offset) return sluice::kFileEnded;
    std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(offset), dst.size(), dst.begin());
    return 0;
  }

 private:
  std::span<const std::byte> bytes_;
};

// What a caller of this layout would get.
void read_block(sluice::BlockReader& reader, std::span<const std::byte> file) {
  const sluice::BlockHeader& header = reader.header();
  std::vector<std::byte> kv(header.kv.num_bytes);
  std::vector<std::span<std::byte>> layers;
  const auto layer_bytes = static_cast<size_t>(header.layout().layer_bytes);
  for (size_t at = 0; at < kv.size(); at += layer_bytes) {
    layers.push_back(std::span(kv).subspan(at, layer_bytes));
  }
  require(reader.compare(header.format, header.place, reader.tokens()).empty());
  if (!reader.read(layers, {}).empty()) return;
  require(std::equal(kv.begin(), kv.end(),
                     file.begin() + static_cast<std::ptrdiff_t>(header.kv.offset)));
  require(sluice::checksum_of(kv) == header.kv.checksum);
}

void parse(std::span<const std::byte> file) {
  const sluice::DecodedHeader decoded = sluice::decode_header(file);
  require(decoded.header.has_value() == decoded.fault.empty());
  if (decoded.header) {
    const sluice::HeaderBytes bytes = sluice::encode_header(*decoded.header);
    require(std::equal(bytes.begin(), bytes.end(), file.begin()));
  }
  MemoryFile files(file);
  sluice::BlockReader reader(files, 0, file.size());
  if (!reader.open().empty()) return;
  require(file.size() == reader.header().file_bytes());
  read_block(reader, file);
  (void)reader.check();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  parse(std::as_bytes(std::span(data, size)));
  // Once more with a right checksum of the header, which no mutation finds; and with the key that
  // parent and tokens have, for the sections behind them.
  if (size < sluice::kBlockHeaderBytes) return 0;
  std::vector<std::byte> file(size);
  std::memcpy(file.data(), data, size);
  const auto header = std::span(file).first(sluice::kBlockHeaderBytes);
  const auto sign = [&] {
    const uint64_t checksum = sluice::checksum_of(header.first(header.size() - 8));
    std::memcpy(header.data() + header.size() - 8, &checksum, 8);
  };
  sign();
  parse(file);
  auto decoded = sluice::decode_header(file);
  if (!decoded.header || decoded.header->file_bytes() != size) return 0;
  std::vector<int32_t> tokens(static_cast<size_t>(decoded.header->layout().block_tokens));
  const auto stored =
      std::span(file).subspan(decoded.header->tokens.offset, decoded.header->tokens.num_bytes);
  std::memcpy(tokens.data(), stored.data(), stored.size());
  decoded.header->place.key = sluice::next_key(decoded.header->place.parent, tokens);
  decoded.header->tokens.checksum = sluice::checksum_of(stored);
  const sluice::HeaderBytes bytes = sluice::encode_header(*decoded.header);
  std::copy(bytes.begin(), bytes.end(), file.begin());
  parse(file);
  return 0;
}
