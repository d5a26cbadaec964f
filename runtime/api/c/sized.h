// The structs of millrace.h across versions: each begins with the size that its program knew.
#pragma once

#include <fmt/core.h>

#include <cstddef>
#include <cstring>
#include <type_traits>

#include "runtime/api/c/status.h"

namespace millrace {

// Whether there is a struct of a size that this library knows. Sizes of structs are multiples of
// their alignment: another one would cut a pointer in two.
template <class T>
bool IsSized(const T* given) {
  static_assert(std::is_trivially_copyable_v<T> && offsetof(T, size) == 0);
  static_assert(alignof(T) == sizeof(void*));
  return given != nullptr && given->size > 0 && given->size <= sizeof(T) &&
         given->size % alignof(T) == 0;
}

// Error MR_INVALID_ARGUMENT unless IsSized.
template <class T>
void RequireSized(const T* given, const char* name) {
  if (IsSized(given)) return;
  if (given == nullptr) throw CallError(MR_INVALID_ARGUMENT, fmt::format("{} is NULL", name));
  const size_t size = given->size;
  throw CallError(
      MR_INVALID_ARGUMENT,
      fmt::format("{}.size is {}; it is sizeof of the struct, which is {} in this library, and a "
                  "multiple of {}{}",
                  name, size, sizeof(T), alignof(T),
                  size > sizeof(T) ? ": the program was compiled for a newer one" : ""));
}

// What was given, and zeros.
template <class T>
T ReadSized(const T* given, const char* name) {
  RequireSized(given, name);
  T read{};
  std::memcpy(&read, given, given->size);
  return read;
}

// As much as the program has room for. RequireSized holds.
template <class T>
void WriteSized(T value, T* to) {
  value.size = to->size;
  std::memcpy(to, &value, to->size);
}

}  // namespace millrace
