// Fields in the order in which vLLM's structures have them; readers go by their names.
#include "events/event_payload.h"

#include <optional>
#include <variant>

#include "events/msgpack_writer.h"

namespace sluice {
namespace {

// vLLM numbers groups of layers with a cache of their own. All layers with KV are one group here.
constexpr uint64_t kGroup = 0;
constexpr std::string_view kSpecKind = "full_attention";

// vLLM's names of its tiers, which routers weigh.
std::string_view name_of(KvMedium medium) { return medium == KvMedium::kGpu ? "GPU" : "CPU"; }

void encode(MsgpackWriter& out, const std::vector<uint64_t>& hashes) {
  out.list(hashes.size());
  for (const uint64_t hash : hashes) out.unsigned_number(hash);
}

// nil tells a router that the blocks begin a prompt.
void encode_parent(MsgpackWriter& out, const std::optional<uint64_t>& parent) {
  if (parent) return out.unsigned_number(*parent);
  out.nil();
}

// What else a hash depends on, of each block: the salt belongs to the first of a prompt.
void encode_extra_keys(MsgpackWriter& out, const BlocksStored& event) {
  out.list(event.hashes.size());
  for (size_t i = 0; i < event.hashes.size(); ++i) {
    if (i > 0 || event.salt.empty()) {
      out.nil();
      continue;
    }
    out.list(1);
    out.text(event.salt);
  }
}

// vLLM's decoder wants lora_id, medium and lora_name to be there, if only as nil.
void encode(MsgpackWriter& out, const BlocksStored& event) {
  out.map(11);
  out.text("type"), out.text("BlockStored");
  out.text("block_hashes"), encode(out, event.hashes);
  out.text("parent_block_hash"), encode_parent(out, event.parent);
  out.text("token_ids"), out.list(event.token_ids.size());
  for (const int32_t id : event.token_ids) out.number(id);
  out.text("block_size"), out.number(event.block_tokens);
  out.text("lora_id"), out.nil();
  out.text("medium"), out.text(name_of(event.medium));
  out.text("lora_name"), out.nil();
  out.text("extra_keys"), encode_extra_keys(out, event);
  out.text("group_idx"), out.unsigned_number(kGroup);
  out.text("kv_cache_spec_kind"), out.text(kSpecKind);
}

void encode(MsgpackWriter& out, const BlocksRemoved& event) {
  out.map(4);
  out.text("type"), out.text("BlockRemoved");
  out.text("block_hashes"), encode(out, event.hashes);
  out.text("medium"), out.text(name_of(event.medium));
  out.text("group_idx"), out.unsigned_number(kGroup);
}

void encode(MsgpackWriter& out, const AllBlocksCleared&) {
  out.map(1);
  out.text("type"), out.text("AllBlocksCleared");
}

}  // namespace

std::string encode_events(const CacheEventBatch& batch) {
  MsgpackWriter out;
  out.list(3);
  out.real(batch.time_s);
  out.list(batch.events.size());
  for (const CacheEvent& event : batch.events) {
    std::visit([&](const auto& held) { encode(out, held); }, event);
  }
  out.unsigned_number(0);
  return out.bytes();
}

}  // namespace sluice
