// Offsets of the header's fields, and their checks.
#include "store/block_file.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include <fmt/format.h>

#include "core/error.h"
#include "store/checksum.h"
#include "store/little_endian.h"

namespace sluice {
namespace {

constexpr std::string_view kMagics[] = {"SLUICEKV", "SLUICEST"};  // by StoredKind
constexpr size_t kMagicBytes = 8;
constexpr int64_t kMaxBlockTokens = int64_t{1} << 20;
constexpr int64_t kMaxLayers = int64_t{1} << 16;
constexpr uint64_t kMaxKvBytes = uint64_t{1} << 40;
constexpr int64_t kMaxPosition = int64_t{1} << 48;
constexpr std::string_view kNameCharacters = "abcdefghijklmnopqrstuvwxyz0123456789_.-";

// Offsets in the header, and lengths where several fields are alike.
constexpr size_t kVersionAt = 8, kNumSummariesAt = 12, kFileBytesAt = 16;
constexpr size_t kFingerprintAt = 24, kKeyAt = 56, kParentAt = 88, kPositionAt = 120;
constexpr size_t kBlockTokensAt = 128, kNumLayersAt = 132, kLayerBytesAt = 136;
constexpr size_t kTokensAt = 144, kKvAt = 168, kSummariesAt = 192;
constexpr size_t kSectionBytes = 24;  // offset, bytes, checksum
constexpr size_t kSummaryNameBytes = kMaxSummaryName + 1, kPageTokensAt = kSummaryNameBytes;
constexpr size_t kSummarySectionAt = 32, kSummaryBytes = kSummarySectionAt + kSectionBytes;
constexpr size_t kChecksumAt = kBlockHeaderBytes - 8;
static_assert(kSummariesAt + kMaxSummaries * kSummaryBytes <= kChecksumAt);

// The next border at or behind `offset`.
constexpr uint64_t aligned(uint64_t offset) {
  return (offset + kSectionAlignment - 1) / kSectionAlignment * kSectionAlignment;
}

// Every product and sum of sizes of a valid layout fits 64 bits.
bool is_valid(const StoreLayout& layout) {
  return layout.block_tokens > 0 && layout.block_tokens <= kMaxBlockTokens &&
         layout.num_layers > 0 && layout.num_layers <= kMaxLayers && layout.layer_bytes > 0 &&
         layout.layer_bytes <= kMaxKvBytes / static_cast<uint64_t>(layout.num_layers);
}

// Names are file-like, since they are printed and compared.
bool is_valid(const SummaryFormat& format) {
  return !format.name.empty() && format.name.size() <= kMaxSummaryName &&
         format.name.find_first_not_of(kNameCharacters) == std::string::npos &&
         format.page_tokens > 0 && format.num_bytes > 0 && format.num_bytes <= kMaxKvBytes;
}

// Writes and reads fields of a header by their offsets.
class Fields {
 public:
  explicit Fields(std::span<std::byte> bytes) : bytes_(bytes) {}

  void number(size_t at, size_t size, uint64_t value) {
    store_little_endian(value, bytes_.subspan(at, size));
  }
  void digest(size_t at, const Digest& value) {
    std::memcpy(bytes_.data() + at, value.bytes.data(), value.bytes.size());
  }
  void text(size_t at, std::string_view value) {
    std::memcpy(bytes_.data() + at, value.data(), value.size());
  }
  void section(size_t at, const FileSection& value) {
    number(at, 8, value.offset);
    number(at + 8, 8, value.num_bytes);
    number(at + 16, 8, value.checksum);
  }

 private:
  std::span<std::byte> bytes_;
};

// Reads `size` bytes at an offset; as Fields wrote them.
uint64_t number_at(std::span<const std::byte> bytes, size_t at, size_t size) {
  return load_little_endian(bytes.subspan(at, size));
}

Digest digest_at(std::span<const std::byte> bytes, size_t at) {
  Digest digest;
  std::memcpy(digest.bytes.data(), bytes.data() + at, digest.bytes.size());
  return digest;
}

// The characters before the first zero.
SummaryFormat summary_at(std::span<const std::byte> bytes, size_t at) {
  const auto* name = reinterpret_cast<const char*>(bytes.data() + at);
  return {.name = std::string(name, strnlen(name, kSummaryNameBytes)),
          .page_tokens = static_cast<int32_t>(number_at(bytes, at + kPageTokensAt, 4)),
          .num_bytes = number_at(bytes, at + kSummarySectionAt + 8, 8)};
}

// Empty if the file is of no kind.
std::optional<StoredKind> kind_at(std::span<const std::byte> bytes) {
  for (const StoredKind kind : {StoredKind::kKv, StoredKind::kState}) {
    const std::string_view magic = kMagics[static_cast<size_t>(kind)];
    if (std::memcmp(bytes.data(), magic.data(), kMagicBytes) == 0) return kind;
  }
  return std::nullopt;
}

// Reads the fields that the others follow from. `num_summaries` is at most kMaxSummaries.
BlockHeader header_of(std::span<const std::byte> bytes, StoredKind kind, const StoreLayout& layout,
                      std::span<const SummaryFormat> summaries) {
  StoreFormat format = {.fingerprint = {digest_at(bytes, kFingerprintAt)}, .layout = {}};
  (kind == StoredKind::kKv ? format.layout : format.states) = layout;
  const BlockPlace place = {.key = {digest_at(bytes, kKeyAt)},
                            .parent = {digest_at(bytes, kParentAt)},
                            .position = static_cast<int64_t>(number_at(bytes, kPositionAt, 8)),
                            .kind = kind};
  BlockHeader header = make_header(format, place, summaries);
  const auto read_checksum = [&](FileSection& section, size_t at) {
    section.checksum = number_at(bytes, at + 16, 8);
  };
  read_checksum(header.tokens, kTokensAt);
  read_checksum(header.kv, kKvAt);
  for (size_t i = 0; i < header.summaries.size(); ++i) {
    read_checksum(header.summaries[i].section,
                  kSummariesAt + i * kSummaryBytes + kSummarySectionAt);
  }
  return header;
}

}  // namespace

void validate_layout(const StoreLayout& layout) {
  if (is_valid(layout)) return;
  fail(ErrorCode::kInvalidArgument,
       "a stored block of {} tokens, {} layers and {} bytes for each layer is not possible; all "
       "must be positive, and the layers at most 1 TiB",
       layout.block_tokens, layout.num_layers, layout.layer_bytes);
}

uint64_t BlockHeader::file_bytes() const {
  const FileSection& last = summaries.empty() ? kv : summaries.back().section;
  return last.offset + last.num_bytes;
}

// The only place that decides where sections lie; readers compare with it.
BlockHeader make_header(const StoreFormat& format, const BlockPlace& place,
                        std::span<const SummaryFormat> summaries) {
  const StoreLayout& layout = format.layout_of(place.kind);
  SLUICE_CHECK(is_valid(layout) && summaries.size() <= kMaxSummaries, "layout of a stored block");
  BlockHeader header{.format = format, .place = place, .tokens = {}, .kv = {}, .summaries = {}};
  header.tokens = {.offset = kBlockHeaderBytes,
                   .num_bytes = static_cast<uint64_t>(layout.block_tokens) * sizeof(int32_t)};
  header.kv = {.offset = aligned(header.tokens.offset + header.tokens.num_bytes),
               .num_bytes = layout.kv_bytes()};
  for (const SummaryFormat& summary : summaries) {
    SLUICE_CHECK(is_valid(summary), "summary '{}' of a stored block", summary.name);
    const uint64_t offset = aligned(header.file_bytes());
    header.summaries.push_back({summary, {.offset = offset, .num_bytes = summary.num_bytes}});
  }
  return header;
}

HeaderBytes encode_header(const BlockHeader& header) {
  HeaderBytes bytes{};
  Fields fields(bytes);
  fields.text(0, kMagics[static_cast<size_t>(header.place.kind)]);
  fields.number(kVersionAt, 4, kBlockFileVersion);
  fields.number(kNumSummariesAt, 4, header.summaries.size());
  fields.number(kFileBytesAt, 8, header.file_bytes());
  fields.digest(kFingerprintAt, header.format.fingerprint);
  fields.digest(kKeyAt, header.place.key);
  fields.digest(kParentAt, header.place.parent);
  fields.number(kPositionAt, 8, static_cast<uint64_t>(header.place.position));
  fields.number(kBlockTokensAt, 4, static_cast<uint64_t>(header.layout().block_tokens));
  fields.number(kNumLayersAt, 4, static_cast<uint64_t>(header.layout().num_layers));
  fields.number(kLayerBytesAt, 8, header.layout().layer_bytes);
  fields.section(kTokensAt, header.tokens);
  fields.section(kKvAt, header.kv);
  for (size_t i = 0; i < header.summaries.size(); ++i) {
    const size_t at = kSummariesAt + i * kSummaryBytes;
    fields.text(at, header.summaries[i].format.name);
    fields.number(at + kPageTokensAt, 4,
                  static_cast<uint64_t>(header.summaries[i].format.page_tokens));
    fields.section(at + kSummarySectionAt, header.summaries[i].section);
  }
  fields.number(kChecksumAt, 8, checksum_of(std::span(bytes).first(kChecksumAt)));
  return bytes;
}

// In the order in which a fault says most: a file of another kind, of another version, damage, and
// then numbers that no writer gives.
DecodedHeader decode_header(std::span<const std::byte> bytes) {
  const auto fault = [](std::string text) {
    return DecodedHeader{.header = {}, .fault = "header: " + std::move(text)};
  };
  if (bytes.size() < kBlockHeaderBytes) return fault("the file is shorter");
  bytes = bytes.first(kBlockHeaderBytes);
  const std::optional<StoredKind> kind = kind_at(bytes);
  if (!kind) return fault("not a stored block");
  if (const uint64_t version = number_at(bytes, kVersionAt, 4); version != kBlockFileVersion) {
    return fault(fmt::format("version {}, and this program reads {}", version, kBlockFileVersion));
  }
  if (checksum_of(bytes.first(kChecksumAt)) != number_at(bytes, kChecksumAt, 8)) {
    return fault("its checksum does not agree");
  }
  const StoreLayout layout = {
      .block_tokens = static_cast<int32_t>(number_at(bytes, kBlockTokensAt, 4)),
      .num_layers = static_cast<int32_t>(number_at(bytes, kNumLayersAt, 4)),
      .layer_bytes = number_at(bytes, kLayerBytesAt, 8)};
  const uint64_t num_summaries = number_at(bytes, kNumSummariesAt, 4);
  const auto position = static_cast<int64_t>(number_at(bytes, kPositionAt, 8));
  if (!is_valid(layout) || num_summaries > kMaxSummaries || position < 0 ||
      position > kMaxPosition || position % layout.block_tokens != 0) {
    return fault("impossible sizes");
  }
  std::vector<SummaryFormat> summaries;
  for (size_t i = 0; i < num_summaries; ++i) {
    summaries.push_back(summary_at(bytes, kSummariesAt + i * kSummaryBytes));
    if (!is_valid(summaries.back())) return fault("an impossible summary");
  }
  BlockHeader header = header_of(bytes, *kind, layout, summaries);
  // Offsets, sizes and zeros: what follows from the fields above must be as it would be written.
  const HeaderBytes expected = encode_header(header);
  if (!std::equal(bytes.begin(), bytes.end(), expected.begin())) return fault("other sections");
  return {.header = std::move(header), .fault = {}};
}

}  // namespace sluice
