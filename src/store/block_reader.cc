// Checks in the order of cost: header, token ids, then the bytes of KV while they are read.
#include "store/block_reader.h"

#include <algorithm>
#include <array>
#include <cstring>

#include <fmt/format.h>

#include "core/error.h"
#include "store/checksum.h"

namespace sluice {
namespace {

// Calls action(chunk) for the pieces of `bytes` until one returns an error.
template <typename Action>
int for_each_chunk(std::span<std::byte> bytes, Action action) {
  while (!bytes.empty()) {
    const std::span<std::byte> chunk = bytes.first(std::min(bytes.size(), kStoreChunkBytes));
    if (const int error = action(chunk); error != 0) return error;
    bytes = bytes.subspan(chunk.size());
  }
  return 0;
}

// Brings the beginning of a file into the page cache by one large read. If a file begins with small
// reads, Linux's readahead starts small, and four such files at once were read at a fifth of the
// disk's rate (docs/kv_store.md). Returns 0 or an errno.
int begin_large(StoreFiles& files, int fd, uint64_t num_bytes) {
  constexpr uint64_t kFirstBytes = uint64_t{1} << 19;
  std::vector<std::byte> unused(std::min(num_bytes, kFirstBytes));
  return files.read(fd, 0, unused);
}

constexpr std::string_view kOtherChecksum = "{}: its checksum does not agree";

}  // namespace

std::string BlockReader::describe(std::string_view name, int error) const {
  if (error == kFileEnded) return fmt::format("{}: the file is shorter", name);
  return fmt::format("{}: {}", name, std::strerror(error));
}

// The key is computed anew, so a header whose parent was exchanged is noticed: eviction relies on
// parents, and `store verify` has nothing to compare them with.
std::string BlockReader::open() {
  if (const int error = begin_large(files_, fd_, num_bytes_)) return describe("header", error);
  HeaderBytes bytes;
  if (const int error = files_.read(fd_, 0, bytes)) return describe("header", error);
  DecodedHeader decoded = decode_header(bytes);
  if (!decoded.header) return decoded.fault;
  header_ = std::move(*decoded.header);
  if (num_bytes_ != header_.file_bytes()) {
    return fmt::format("header: the file has {} bytes, and it says {}", num_bytes_,
                       header_.file_bytes());
  }
  tokens_.resize(static_cast<size_t>(header_.layout().block_tokens));
  const std::span<std::byte> part = std::as_writable_bytes(std::span(tokens_));
  if (std::string fault = read_into("tokens", header_.tokens, {&part, 1}); !fault.empty()) {
    return fault;
  }
  if (next_key(header_.place.parent, tokens_) != header_.place.key) {
    return "header: the key is not that of the parent and the tokens";
  }
  return {};
}

std::string BlockReader::compare(const StoreFormat& format, const BlockPlace& place,
                                 std::span<const int32_t> tokens) const {
  if (header_.format.fingerprint != format.fingerprint) return "header: another fingerprint";
  if (header_.place.kind != place.kind) return "header: another kind";
  if (header_.layout() != format.layout_of(place.kind)) return "header: another layout";
  if (header_.place.key != place.key) return "header: another key";
  if (header_.place != place) return "header: another parent or position";
  if (!std::equal(tokens_.begin(), tokens_.end(), tokens.begin(), tokens.end())) {
    return "tokens: others than asked for";
  }
  return {};
}

// A summary that the file lacks is no fault: it is made anew from the keys.
std::string BlockReader::read(LayerTargets layers, std::span<SummaryTarget> summaries) {
  if (std::string fault = read_into("kv", header_.kv, layers); !fault.empty()) return fault;
  for (SummaryTarget& target : summaries) {
    const auto found =
        std::find_if(header_.summaries.begin(), header_.summaries.end(),
                     [&](const SummarySection& stored) { return stored.format == target.format; });
    target.is_found = found != header_.summaries.end();
    if (!target.is_found) continue;
    std::string fault = read_into(target.format.name, found->section, {&target.bytes, 1});
    if (!fault.empty()) return fault;
  }
  return {};
}

std::string BlockReader::check() {
  std::string fault = check_section("kv", header_.kv);
  for (size_t i = 0; fault.empty() && i < header_.summaries.size(); ++i) {
    fault = check_section(header_.summaries[i].format.name, header_.summaries[i].section);
  }
  return fault;
}

// The bytes of `parts`, one after the other, are those of the section.
std::string BlockReader::read_into(std::string_view name, const FileSection& section,
                                   LayerTargets parts) {
  uint64_t offset = section.offset;
  Checksum checksum;
  for (const std::span<std::byte> part : parts) {
    const int error = for_each_chunk(part, [&](std::span<std::byte> chunk) {
      const int failed = files_.read(fd_, offset, chunk);
      if (failed == 0) checksum.add(chunk);
      offset += chunk.size();
      return failed;
    });
    if (error != 0) return describe(name, error);
  }
  SLUICE_CHECK(offset == section.offset + section.num_bytes, "{} of a stored block has {} bytes",
               name, section.num_bytes);
  return checksum.value() == section.checksum ? "" : fmt::format(kOtherChecksum, name);
}

// The same checks, chunk by chunk through a small buffer, for callers that need no KV.
std::string BlockReader::check_section(std::string_view name, const FileSection& section) {
  std::vector<std::byte> buffer(std::min<uint64_t>(section.num_bytes, kStoreChunkBytes));
  Checksum checksum;
  for (uint64_t done = 0; done < section.num_bytes;) {
    const auto chunk =
        std::span(buffer).first(std::min<uint64_t>(section.num_bytes - done, buffer.size()));
    const int error = files_.read(fd_, section.offset + done, chunk);
    if (error != 0) return describe(name, error);
    checksum.add(chunk);
    done += chunk.size();
  }
  return checksum.value() == section.checksum ? "" : fmt::format(kOtherChecksum, name);
}

}  // namespace sluice
