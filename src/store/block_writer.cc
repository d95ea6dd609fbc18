// Each chunk is hashed just before it is written, so KV passes through the processor's cache once.
#include "store/block_writer.h"

#include <algorithm>
#include <vector>

#include "core/error.h"
#include "store/block_reader.h"
#include "store/checksum.h"

namespace sluice {
namespace {

using Bytes = std::span<const std::byte>;

// Writes the parts one after the other and sets the section's checksum. Returns 0 or an errno.
int write_section(StoreFiles& files, int fd, std::span<const Bytes> parts, FileSection* section) {
  uint64_t offset = section->offset;
  Checksum checksum;
  for (Bytes part : parts) {
    while (!part.empty()) {
      const Bytes chunk = part.first(std::min(part.size(), kStoreChunkBytes));
      checksum.add(chunk);
      if (const int error = files.write(fd, offset, chunk)) return error;
      offset += chunk.size();
      part = part.subspan(chunk.size());
    }
  }
  SLUICE_CHECK(offset == section->offset + section->num_bytes, "a section of {} bytes got {}",
               section->num_bytes, offset - section->offset);
  section->checksum = checksum.value();
  return 0;
}

// Checksums are set by write_section.
BlockHeader header_of(const StoreFormat& format, const BlockSource& source) {
  std::vector<SummaryFormat> formats;
  for (const SummarySource& summary : source.summaries) formats.push_back(summary.format);
  return make_header(format, source.place, formats);
}

// The header comes last: it has the checksums of the others. Until then the file begins with zeros,
// which no reader accepts.
int write_sections(StoreFiles& files, int fd, const BlockSource& source, BlockHeader header) {
  const Bytes tokens = std::as_bytes(source.tokens);
  if (const int error = write_section(files, fd, {&tokens, 1}, &header.tokens)) return error;
  if (const int error = write_section(files, fd, source.layers, &header.kv)) return error;
  for (size_t i = 0; i < source.summaries.size(); ++i) {
    FileSection* section = &header.summaries[i].section;
    if (const int error = write_section(files, fd, {&source.summaries[i].bytes, 1}, section)) {
      return error;
    }
  }
  return files.write(fd, 0, encode_header(header));
}

}  // namespace

uint64_t block_file_bytes(const StoreFormat& format, const BlockSource& source) {
  return header_of(format, source).file_bytes();
}

int write_block(StoreFiles& files, const StoreFormat& format, const BlockSource& source,
                const StorePath& temporary, const StorePath& path) {
  int fd = -1;
  if (const int error = files.create(temporary, &fd)) return error;
  StoreFile file(files, fd);
  int error = write_sections(files, fd, source, header_of(format, source));
  // Renamed before the lock ends: without a lock it would count as abandoned. A full disk that only
  // close() reports makes a block that fails its checks, so it is removed again.
  if (error == 0) error = files.rename(temporary, path);
  if (error != 0) {
    files.remove(temporary);
    return error;
  }
  error = file.close();
  if (error != 0) files.remove(path);
  return error;
}

}  // namespace sluice
