#include "runtime/data/hash.h"

#include <fmt/core.h>
#include <xxhash.h>

#include <new>

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

void Hasher128::Free::operator()(XXH3_state_s* state) const noexcept { XXH3_freeState(state); }

Hasher128::Hasher128() : state_(XXH3_createState()) {
  if (state_ == nullptr) throw std::bad_alloc();
  Reset();
}
Hasher128::~Hasher128() = default;
Hasher128::Hasher128(Hasher128&&) noexcept = default;
Hasher128& Hasher128::operator=(Hasher128&&) noexcept = default;

void Hasher128::Update(const void* data, int64_t bytes) {
  MR_CHECK_GE(bytes, 0, "cannot hash a negative number of bytes");
  if (bytes > 0) XXH3_128bits_update(state_.get(), data, static_cast<size_t>(bytes));
}

void Hasher128::Update(std::string_view text) {
  Update(text.data(), static_cast<int64_t>(text.size()));
}

std::string Hasher128::Hex() const { return millrace::Hex(XXH3_128bits_digest(state_.get())); }

void Hasher128::Reset() { XXH3_128bits_reset(state_.get()); }

}  // namespace millrace
