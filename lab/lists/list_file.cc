// Writes and reads the fields in order; a checksum comes before any of them is believed.
#include "lab/lists/list_file.h"

#include <cstring>
#include <limits>

#include "core/error.h"
#include "core/printable.h"
#include "store/checksum.h"
#include "store/little_endian.h"

namespace sluice::lab {
namespace {

constexpr std::string_view kMagic = "SLUICEPL";
constexpr uint32_t kVersion = 1;
constexpr size_t kChecksumBytes = 8;
constexpr size_t kFixedBytes = 52;  // up to the model's name
constexpr size_t kMaxNameBytes = 255;
constexpr int32_t kMaxCount = 1 << 20;  // layers, heads, steps, pages: more than there can be
constexpr int64_t kMaxPosition = int64_t{1} << 30;

uint64_t checksum_of_text(std::string_view bytes) {
  return checksum_of(std::as_bytes(std::span(bytes)));
}

void put_number(std::string& bytes, uint64_t value, size_t size) {
  const size_t at = bytes.size();
  bytes.resize(at + size);
  store_little_endian(value, std::as_writable_bytes(std::span(bytes)).subspan(at));
}

void put_varint(std::string& bytes, uint32_t value) {
  for (; value >= 128; value >>= 7) bytes.push_back(static_cast<char>(value % 128 + 128));
  bytes.push_back(static_cast<char>(value));
}

// Reads fields from the front of bytes whose checksum was right: a fault is one of the writer.
class FieldReader {
 public:
  FieldReader(std::string_view bytes, std::string_view name) : bytes_(bytes), name_(name) {}

  [[noreturn]] void fail_field(std::string_view fault) const {
    fail(ErrorCode::kInvalidArgument, "{} {}; record it again with sluice-lab overlap --record",
         printable(name_), fault);
  }
  std::string_view take(size_t num_bytes) {
    if (bytes_.size() < num_bytes) fail_field("ends too early");
    const std::string_view taken = bytes_.substr(0, num_bytes);
    bytes_.remove_prefix(num_bytes);
    return taken;
  }
  uint64_t number(size_t size) { return load_little_endian(std::as_bytes(std::span(take(size)))); }
  // A count of 4 bytes. Errors: unless it is in [least, kMaxCount].
  int32_t count(int32_t least) {
    const uint64_t value = number(4);
    if (value < static_cast<uint64_t>(least) || value > kMaxCount) fail_field("has a wrong size");
    return static_cast<int32_t>(value);
  }
  uint32_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 35; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= static_cast<uint64_t>(byte % 128) << shift;
      if (byte < 128 && value <= std::numeric_limits<int32_t>::max()) {
        return static_cast<uint32_t>(value);
      }
    }
    fail_field("has a wrong page");
  }
  size_t num_left() const { return bytes_.size(); }

 private:
  std::string_view bytes_;
  std::string_view name_;
};

// The sizes and the model's name.
RecordedLists read_header(FieldReader& reader) {
  RecordedLists lists;
  lists.num_layers = reader.count(1);
  lists.num_heads = reader.count(1);
  lists.num_steps = reader.count(1);
  lists.rule.top_pages = reader.count(1);
  lists.page_tokens = reader.count(1);
  lists.rule.sink_pages = reader.count(0);
  lists.rule.recent_tokens = reader.count(0);
  const uint64_t first_pos = reader.number(8);
  if (first_pos > kMaxPosition) reader.fail_field("has a wrong position");
  lists.first_pos = static_cast<int64_t>(first_pos);
  const uint64_t name_bytes = reader.number(4);
  if (name_bytes > kMaxNameBytes) reader.fail_field("has a name that is too long");
  lists.model = std::string(reader.take(name_bytes));
  return lists;
}

// Appends one list.
void read_list(FieldReader& reader, int32_t step, RecordedLists& lists) {
  int64_t page = -1;
  for (int32_t i = 0; i < lists.rule.top_pages; ++i) {
    page += int64_t{reader.varint()} + 1;
    if (page < lists.rule.sink_pages || page >= lists.end_candidate(step)) {
      reader.fail_field("has a page that was not to be chosen");
    }
    lists.page_ids.push_back(static_cast<int32_t>(page));
  }
}

// Checks what comes before and after the fields, and returns the fields.
std::string_view check_frame(std::string_view bytes, std::string_view name) {
  if (!bytes.starts_with(kMagic)) {
    fail(ErrorCode::kInvalidArgument,
         "{} is no file of page lists; sluice-lab overlap --record writes them", printable(name));
  }
  const auto fail_damaged = [&] {
    fail(ErrorCode::kInvalidArgument,
         "{} is cut off or damaged; record it again with sluice-lab overlap --record",
         printable(name));
  };
  if (bytes.size() < kFixedBytes + kChecksumBytes) fail_damaged();
  FieldReader frame(bytes.substr(kMagic.size()), name);
  const uint64_t version = frame.number(4);
  if (version != kVersion) {
    fail(ErrorCode::kInvalidArgument,
         "{} has version {} of its format, and this program reads version {}; record it again",
         printable(name), version, kVersion);
  }
  const std::string_view body = bytes.substr(0, bytes.size() - kChecksumBytes);
  FieldReader end(bytes.substr(body.size()), name);
  if (end.number(kChecksumBytes) != checksum_of_text(body)) fail_damaged();
  return body.substr(kMagic.size() + 4);
}

}  // namespace

std::string encode_lists(const RecordedLists& lists) {
  std::string bytes(kMagic);
  put_number(bytes, kVersion, 4);
  for (const int32_t count :
       {lists.num_layers, lists.num_heads, lists.num_steps, lists.rule.top_pages, lists.page_tokens,
        lists.rule.sink_pages, lists.rule.recent_tokens}) {
    put_number(bytes, static_cast<uint64_t>(count), 4);
  }
  put_number(bytes, static_cast<uint64_t>(lists.first_pos), 8);
  const std::string_view model = std::string_view(lists.model).substr(0, kMaxNameBytes);
  put_number(bytes, model.size(), 4);
  bytes += model;
  const auto width = static_cast<size_t>(lists.rule.top_pages);
  for (size_t i = 0; i < lists.page_ids.size(); ++i) {
    const int32_t before = i % width == 0 ? -1 : lists.page_ids[i - 1];
    put_varint(bytes, static_cast<uint32_t>(lists.page_ids[i] - before - 1));
  }
  put_number(bytes, checksum_of_text(bytes), kChecksumBytes);
  return bytes;
}

RecordedLists decode_lists(std::string_view bytes, std::string_view name) {
  FieldReader reader(check_frame(bytes, name), name);
  RecordedLists lists = read_header(reader);
  const int64_t lists_of_a_step = int64_t{lists.num_layers} * lists.num_heads;
  // Every page has a byte, so memory for pages is bounded by the file.
  const auto num_bytes = static_cast<int64_t>(reader.num_left());
  if (lists_of_a_step > num_bytes / lists.num_steps / lists.rule.top_pages) {
    reader.fail_field("ends too early");
  }
  lists.page_ids.reserve(
      static_cast<size_t>(lists_of_a_step * lists.num_steps * lists.rule.top_pages));
  for (int32_t step = 0; step < lists.num_steps; ++step) {
    for (int64_t list = 0; list < lists_of_a_step; ++list) read_list(reader, step, lists);
  }
  if (reader.num_left() > 0) reader.fail_field("has bytes after its lists");
  return lists;
}

}  // namespace sluice::lab
