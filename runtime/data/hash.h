// XXH3-128: the checksum of whatever comes back from a disk or is told from another run's
// (checkpoint files, param_hash, plan stages, lists that ranks compare). It finds damage and
// differences; it is no defence against someone who forges a file. Short names within one program
// (a plan's hash, the streams of initial values) are runtime/base/fnv.h's; event files ask for
// crc32c.h.
//
// Text form: 32 hex digits, most significant first, as `xxhsum -H2` prints it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace millrace {

std::string Hash128(const void* data, int64_t bytes);
std::string Hash128(std::string_view text);

// The same hash of a byte sequence that arrives in pieces; how it is cut does not matter.
class Hasher128 {
 public:
  Hasher128();
  ~Hasher128();
  Hasher128(Hasher128&&) noexcept;
  Hasher128& operator=(Hasher128&&) noexcept;

  void Update(const void* data, int64_t bytes);
  void Update(std::string_view text);
  std::string Hex() const;  // of everything so far; more may follow
  void Reset();             // forgets everything

  // Everything so far, for a hasher in another process of this program to go on with: some hundred
  // bytes, as many each time. Restore: Error(kInternal) for another length.
  std::string Save() const;
  void Restore(std::string_view saved);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace millrace
