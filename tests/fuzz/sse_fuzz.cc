// Writes any text as a server-sent event and reads the stream as the standard says: one event, with
// the name and the lines of the text.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "server/http/sse.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

// The standard's line ends are CR LF, CR and LF alike.
std::string with_lf(std::string_view text) {
  std::string lines;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\n' && i > 0 && text[i - 1] == '\r') continue;
    lines += text[i] == '\r' ? '\n' : text[i];
  }
  return lines;
}

struct Reader {
  std::string name, data;
  int num_events = 0;

  // What the standard does with a line.
  void read_line(std::string_view line) {
    if (line.empty()) {
      ++num_events;
      require(data.ends_with('\n'));
      data.pop_back();
      return;
    }
    require(num_events == 0);
    const size_t colon = line.find(':');
    if (colon == 0) return;
    std::string_view value = colon == line.npos ? "" : line.substr(colon + 1);
    if (value.starts_with(' ')) value.remove_prefix(1);
    const std::string_view field = line.substr(0, colon);
    if (field == "event") name = value;
    if (field == "data") data.append(value).append("\n");
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  std::string stream;
  sluice::http::append_sse_event(stream, "e", text);
  require(stream.ends_with("\n\n"));
  const std::string lines = with_lf(stream);
  Reader reader;
  for (size_t at = 0; at < lines.size();) {
    const size_t end = lines.find('\n', at);
    reader.read_line(std::string_view(lines).substr(at, end - at));
    at = end + 1;
  }
  require(reader.num_events == 1 && reader.name == "e" && reader.data == with_lf(text));
  return 0;
}
