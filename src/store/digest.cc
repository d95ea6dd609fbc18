// SHA-256 by OpenSSL, which uses the processor's own instructions for it.
#include "store/digest.h"

#include <openssl/evp.h>

#include "core/error.h"
#include "store/little_endian.h"

namespace sluice {
namespace {

constexpr std::string_view kDigits = "0123456789abcdef";

}  // namespace

std::string Digest::hex() const {
  std::string text;
  for (const std::byte byte : bytes) {
    text += kDigits[static_cast<size_t>(byte) >> 4];
    text += kDigits[static_cast<size_t>(byte) & 15];
  }
  return text;
}

std::optional<Digest> Digest::from_hex(std::string_view text) {
  Digest digest;
  if (text.size() != 2 * digest.bytes.size()) return std::nullopt;
  for (size_t i = 0; i < digest.bytes.size(); ++i) {
    const size_t high = kDigits.find(text[2 * i]), low = kDigits.find(text[2 * i + 1]);
    if (high == kDigits.npos || low == kDigits.npos) return std::nullopt;
    digest.bytes[i] = static_cast<std::byte>(high << 4 | low);
  }
  return digest;
}

void Sha256::Freer::operator()(evp_md_ctx_st* context) const { EVP_MD_CTX_free(context); }

// SHA-256 is in every build of OpenSSL, so only used up memory makes these calls fail.
Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  SLUICE_CHECK(context_ && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1,
               "OpenSSL cannot compute SHA-256");
}

Sha256::~Sha256() = default;

Sha256& Sha256::add(std::span<const std::byte> bytes) {
  SLUICE_CHECK(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1,
               "OpenSSL cannot compute SHA-256");
  return *this;
}

Sha256& Sha256::add_with_length(std::span<const std::byte> bytes) {
  std::array<std::byte, 8> length;
  store_little_endian(bytes.size(), length);
  return add(length).add(bytes);
}

Digest Sha256::finish() {
  Digest digest;
  SLUICE_CHECK(EVP_DigestFinal_ex(context_.get(), reinterpret_cast<unsigned char*>(&digest.bytes),
                                  nullptr) == 1,
               "OpenSSL cannot compute SHA-256");
  return digest;
}

}  // namespace sluice
