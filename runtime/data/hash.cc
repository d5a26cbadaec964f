#include "runtime/data/hash.h"

// Compiled in: with the instructions that the rest is built for, not those of every x86-64, and
// with a state whose fields are those of this header.
#define XXH_INLINE_ALL
#include <fmt/core.h>
#include <xxhash.h>

#include <cstring>

#include "runtime/base/error.h"

namespace millrace {
namespace {

std::string Hex(XXH128_hash_t hash) {
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace

std::string Hash128(const void* data, int64_t bytes) {
  MR_CHECK_GE(bytes, 0, "cannot hash a negative number of bytes");
  return Hex(XXH3_128bits(data, static_cast<size_t>(bytes)));
}

std::string Hash128(std::string_view text) {
  return Hash128(text.data(), static_cast<int64_t>(text.size()));
}

struct Hasher128::State {
  XXH3_state_t xxh3;
};

Hasher128::Hasher128() : state_(std::make_unique<State>()) { Reset(); }
Hasher128::~Hasher128() = default;
Hasher128::Hasher128(Hasher128&&) noexcept = default;
Hasher128& Hasher128::operator=(Hasher128&&) noexcept = default;

void Hasher128::Update(const void* data, int64_t bytes) {
  MR_CHECK_GE(bytes, 0, "cannot hash a negative number of bytes");
  if (bytes > 0) XXH3_128bits_update(&state_->xxh3, data, static_cast<size_t>(bytes));
}

void Hasher128::Update(std::string_view text) {
  Update(text.data(), static_cast<int64_t>(text.size()));
}

std::string Hasher128::Hex() const { return millrace::Hex(XXH3_128bits_digest(&state_->xxh3)); }

void Hasher128::Reset() { XXH3_128bits_reset(&state_->xxh3); }

std::string Hasher128::Save() const {
  return {reinterpret_cast<const char*>(&state_->xxh3), sizeof state_->xxh3};
}

void Hasher128::Restore(std::string_view saved) {
  MR_CHECK_EQ(saved.size(), sizeof state_->xxh3, "bytes of a hasher");
  const unsigned char* const secret = state_->xxh3.extSecret;  // lies elsewhere in each process
  std::memcpy(&state_->xxh3, saved.data(), saved.size());
  state_->xxh3.extSecret = secret;
}

}  // namespace millrace
